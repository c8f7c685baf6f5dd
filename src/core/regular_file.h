// Reads untrusted files. Opens only regular files, and never blocks: a FIFO, a device or a socket
// is an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace switchyard {

// Identity, size and modification time of a file when it was opened. DescribeChange compares them
// with the file's present state.
struct FileStamp {
  std::filesystem::path path;
  uint64_t device = 0, inode = 0;
  uint64_t size = 0;     // bytes
  int64_t mtime_ns = 0;  // time of the last modification, since 1970

  bool operator==(const FileStamp&) const = default;
};

// A regular file, open for reading; closed on destruction. Thread-safe, except for reads that share
// the file position.
class RegularFile {
 public:
  // Throws Error that names `path`: kNotFound if it cannot be opened, kInvalid if it is not a
  // regular file.
  explicit RegularFile(const std::filesystem::path& path);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  int fd() const { return fd_; }
  uint64_t size() const { return stamp_.size; }  // bytes, at the time of opening
  const FileStamp& stamp() const { return stamp_; }

 private:
  int fd_;
  FileStamp stamp_;
};

// Returns the whole file. Throws RegularFile's errors, and kInvalid if the file has more than
// `max_bytes`.
std::string ReadRegularFile(const std::filesystem::path& path, uint64_t max_bytes);

// Like ReadRegularFile, but returns nullopt if `path` does not exist.
std::optional<std::string> ReadRegularFileIfExists(const std::filesystem::path& path,
                                                   uint64_t max_bytes);

// Compares the file at `stamp.path` with `stamp`. Returns a sentence that names the file and its
// change, or an empty string if there is none.
std::string DescribeChange(const FileStamp& stamp);

}  // namespace switchyard
