// Files that others wrote. Only regular files are opened, and never with a wait: a FIFO, a device
// or a socket in the place of a file is an error.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace switchyard {

// What tells whether a file has changed since it was opened.
struct FileStamp {
  std::filesystem::path path;
  uint64_t device = 0, inode = 0;
  uint64_t size = 0;     // bytes
  int64_t mtime_ns = 0;  // time of the last modification, since 1970

  bool operator==(const FileStamp&) const = default;
};

// A regular file, open for reading; closed on destruction.
class RegularFile {
 public:
  // Errors name `path`: kNotFound where it cannot be opened, kInvalid where it is no regular file.
  explicit RegularFile(const std::filesystem::path& path);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  int fd() const { return fd_; }
  uint64_t size() const { return stamp_.size; }  // bytes, when it was opened
  const FileStamp& stamp() const { return stamp_; }

 private:
  int fd_;
  FileStamp stamp_;
};

// The whole file. Errors as of RegularFile, and kInvalid where it has more than `max_bytes`.
std::string ReadRegularFile(const std::filesystem::path& path, uint64_t max_bytes);

// nullopt where nothing exists at `path`.
std::optional<std::string> ReadRegularFileIfThere(const std::filesystem::path& path,
                                                  uint64_t max_bytes);

// How the file at the stamp's path differs from it, as a sentence that names the file; empty if it
// does not.
std::string DescribeChange(const FileStamp& stamp);

}  // namespace switchyard
