// Files: regular files, mapped files, and files that are written beside and renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace switchyard {

// Reads untrusted files. Opens only regular files, and never blocks: a FIFO, a device or a socket
// is an error.

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

// A file mapped into memory, read-only.

// Unmapped on destruction. Immutable. The file must not change while it is mapped: a read past the
// end of a truncated file kills the process with SIGBUS.
struct MappedFile {
  MappedFile(std::string file_name, const uint8_t* bytes, size_t num_bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string name;
  const uint8_t* const data;
  const size_t size;
};

// Throws Error: kInvalid if the file is empty, kResource if it cannot be mapped.
std::shared_ptr<const MappedFile> MapFile(const RegularFile& file);

// Files that are complete whenever they exist under their own name.

// A file that is written beside `path`, as `path` + ".part", and renamed by Finish. So readers of
// `path` always see a complete file. Without Finish the destructor removes the part. Every function
// throws Error kResource that names `path` and the reason, e.g. a full disk. One thread at a time.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void Write(const void* data, size_t size);  // after the bytes of the last Write
  void WriteAt(uint64_t offset, const void* data, size_t size);
  // Copies bytes [offset, offset + size) of the written data to `data`.
  void ReadAt(uint64_t offset, void* data, size_t size) const;
  // Syncs and closes the file, and renames it to `path`. No call may follow.
  void Finish();

 private:
  [[noreturn]] void Fail() const;  // throws the Error of errno

  std::filesystem::path path_, part_;
  int file_ = -1;
  uint64_t end_ = 0;  // end of the last Write, in bytes
};

// Writes or replaces a whole file. Throws OutputFile's errors.
void WriteWholeFile(const std::filesystem::path& path, std::string_view bytes);

}  // namespace switchyard
