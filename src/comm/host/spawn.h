// Starting this program again as a child process. Internal to comm/host.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

namespace switchyard {

// Owns a file descriptor; -1 owns nothing.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { Close(); }
  int get() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

// The environment as "NAME=value" entries.
std::vector<std::string> CopyEnvironment();

// Runs /proc/self/exe in a new process and returns its pid once it has been exec'ed. The child
// keeps stdout, stderr and `inherited` of the open descriptors, under their numbers, and reads
// stdin from /dev/null. It ignores SIGINT, SIGTERM and SIGHUP and blocks no signal. Error kResource
// where the system refuses. Any thread may call it.
pid_t SpawnSelf(const std::vector<std::string>& arguments,
                const std::vector<std::string>& environment, const std::vector<int>& inherited);

}  // namespace switchyard
