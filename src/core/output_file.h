// Files that are complete whenever they exist under their own name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace switchyard {

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
