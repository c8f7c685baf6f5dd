#include "comm/host/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "comm/net/file_descriptor.h"
#include "core/error.h"
#include "core/log.h"

namespace switchyard {
namespace {

constexpr size_t kMinBytes = 16;
constexpr size_t kMaxBytes = 64 << 10;
constexpr const char* kHint = "create one with: openssl rand -hex 32 > FILE; chmod 600 FILE";

Error Refused(const std::string& path, const std::string& why) {
  return Error(ErrorKind::kInvalid, fmt::format("--dist-secret-file {}: {}", path, why), kHint);
}

std::string ReadAtMost(int fd, size_t most, const std::string& path) {
  std::string bytes(most, '\0');
  size_t done = 0;
  while (done < most) {
    const ssize_t n = read(fd, bytes.data() + done, most - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Refused(path, std::strerror(errno));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace

std::string ReadSecretFile(const std::string& path) {
  // O_NONBLOCK: a FIFO would otherwise block the open.
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    const int error = errno;
    const std::string what = fmt::format("--dist-secret-file {}: {}", path, std::strerror(error));
    throw Error(error == ENOENT ? ErrorKind::kNotFound : ErrorKind::kInvalid, what, kHint);
  }
  struct stat status {};
  if (fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw Refused(path, "is not a regular file");
  }
  std::string secret = ReadAtMost(fd.get(), kMaxBytes + 1, path);
  if (secret.size() > kMaxBytes) {
    throw Refused(path, fmt::format("has more than {} bytes", kMaxBytes));
  }
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.size() < kMinBytes) {
    throw Refused(
        path, fmt::format("has {} bytes, want at least {} random ones", secret.size(), kMinBytes));
  }
  if ((status.st_mode & S_IRWXO) != 0) {
    LOG_WARNING(
        "--dist-secret-file {}: every user of this host has access to it (mode {:04o}); "
        "use chmod 600",
        path, status.st_mode & 07777u);
  }
  return secret;
}

}  // namespace switchyard
