#include "core/regular_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

std::string_view TypeOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "of an unknown type";
}

Error NotRegular(const std::filesystem::path& path, mode_t mode) {
  return Invalid("{}: is {}, want a regular file", path.string(), TypeOf(mode));
}

FileStamp StampOf(const std::filesystem::path& path, const struct stat& info) {
  return {.path = path,
          .device = info.st_dev,
          .inode = info.st_ino,
          .size = static_cast<uint64_t>(info.st_size),
          .mtime_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

}  // namespace

RegularFile::RegularFile(const std::filesystem::path& path)
    // O_NONBLOCK: otherwise, opening a FIFO blocks until there is a writer.
    : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
  struct stat info {};
  if (fd_ < 0) {
    const int error = errno;
    // open() fails for sockets and for devices without a driver. For these, an error that names the
    // file type is clearer.
    if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
      throw NotRegular(path, info.st_mode);
    throw NotFound("{}: {}", path.string(), std::strerror(error));
  }
  const int failed = fstat(fd_, &info) != 0 ? errno : 0;
  if (failed == 0 && S_ISREG(info.st_mode)) {
    stamp_ = StampOf(path, info);
    return;
  }
  close(fd_);
  if (failed != 0) throw NotFound("{}: {}", path.string(), std::strerror(failed));
  throw NotRegular(path, info.st_mode);
}

RegularFile::~RegularFile() { close(fd_); }

std::string ReadRegularFile(const std::filesystem::path& path, uint64_t max_bytes) {
  const RegularFile file(path);
  const auto check_size = [&](uint64_t bytes) {
    if (bytes > max_bytes)
      throw Invalid("{}: has {} bytes, at most {} are allowed", path.string(), bytes, max_bytes);
  };
  check_size(file.size());
  // Reads to the end, whatever the size: files of /proc report 0, and a file may grow.
  constexpr size_t kChunk = 64 << 10;
  std::string text;
  text.resize(file.size() + 1);
  size_t filled = 0;
  for (;;) {
    if (filled == text.size()) text.resize(filled + kChunk);
    const ssize_t got = read(file.fd(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw NotFound("{}: cannot be read: {}", path.string(), std::strerror(errno));
    if (got == 0) break;
    filled += static_cast<size_t>(got);
    check_size(filled);
  }
  text.resize(filled);
  return text;
}

std::optional<std::string> ReadRegularFileIfExists(const std::filesystem::path& path,
                                                   uint64_t max_bytes) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  return ReadRegularFile(path, max_bytes);
}

std::string DescribeChange(const FileStamp& stamp) {
  struct stat info {};
  const std::string name = stamp.path.string();
  if (stat(stamp.path.c_str(), &info) != 0) return fmt::format("{} has been removed", name);
  const FileStamp now = StampOf(stamp.path, info);
  if (now == stamp) return {};
  if (now.device != stamp.device || now.inode != stamp.inode) {
    return fmt::format("{} has been replaced by another file", name);
  }
  if (now.size < stamp.size) {
    return fmt::format("{} has been truncated from {} to {} bytes while it was in use", name,
                       stamp.size, now.size);
  }
  if (now.size > stamp.size) {
    return fmt::format("{} has grown from {} to {} bytes while it was in use", name, stamp.size,
                       now.size);
  }
  return fmt::format("{} has been overwritten while it was in use", name);
}

MappedFile::MappedFile(std::string file_name, const uint8_t* bytes, size_t num_bytes)
    : name(std::move(file_name)), data(bytes), size(num_bytes) {}
MappedFile::~MappedFile() { munmap(const_cast<uint8_t*>(data), size); }

std::shared_ptr<const MappedFile> MapFile(const RegularFile& file) {
  const std::string name = file.stamp().path.string();
  if (file.size() == 0) throw Invalid("{}: empty; it is truncated", name);
  void* p = mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, file.fd(), 0);
  if (p == MAP_FAILED) throw Resource("{}: cannot map: {}", name, std::strerror(errno));
  return std::make_shared<const MappedFile>(name, static_cast<const uint8_t*>(p), file.size());
}

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
