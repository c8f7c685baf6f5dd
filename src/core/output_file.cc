#include "core/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

constexpr size_t kMostOfOneCall = size_t{1} << 30;

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path) : path_(path), part_(path) {
  part_ += ".part";
  file_ = ::open(part_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) Fail();
}

OutputFile::~OutputFile() {
  if (file_ < 0) return;
  ::close(file_);
  std::error_code ignored;
  std::filesystem::remove(part_, ignored);
}

void OutputFile::Fail() const {
  throw Resource("{}: cannot be written: {}", path_.string(),
                 std::generic_category().message(errno));
}

void OutputFile::Write(const void* data, size_t size) {
  WriteAt(end_, data, size);
  end_ += size;
}

void OutputFile::WriteAt(uint64_t offset, const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written =
        ::pwrite(file_, next, std::min(size, kMostOfOneCall), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) Fail();
    next += written;
    offset += static_cast<uint64_t>(written);
    size -= static_cast<size_t>(written);
  }
}

void OutputFile::ReadAt(uint64_t offset, void* data, size_t size) const {
  char* next = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got =
        ::pread(file_, next, std::min(size, kMostOfOneCall), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = EIO;
    if (got <= 0) Fail();
    next += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<size_t>(got);
  }
}

void OutputFile::Finish() {
  if (::fsync(file_) != 0) Fail();
  const bool closed = ::close(std::exchange(file_, -1)) == 0;
  if (closed && ::rename(part_.c_str(), path_.c_str()) == 0) return;
  const int error = errno;
  std::error_code ignored;
  std::filesystem::remove(part_, ignored);
  errno = error;
  Fail();
}

void WriteWholeFile(const std::filesystem::path& path, std::string_view bytes) {
  OutputFile out(path);
  out.Write(bytes.data(), bytes.size());
  out.Finish();
}

}  // namespace switchyard
