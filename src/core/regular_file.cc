#include "core/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

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

}  // namespace switchyard
