// File descriptors with an owner, and files without a name.
#pragma once

#include <unistd.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

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
  int Release() { return std::exchange(fd_, -1); }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

// Files in memory, with which a process leaves bytes for another one that has the descriptor.

// A new file that holds `bytes`, closed on exec. /proc shows `name`. If the kernel refuses, the
// descriptor is −1 and errno has the reason.
FileDescriptor WriteMemoryFile(const char* name, std::string_view bytes);
// The contents of a regular file; nullopt: it is none, or cannot be read, and errno has the reason.
std::optional<std::string> ReadMemoryFile(int fd);

}  // namespace switchyard
