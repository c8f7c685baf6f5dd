// Reads a ZIP archive whose entries are stored without compression.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace switchyard {

// Reads the directory when it is constructed, and entries on request. Single-threaded.
class ZipArchive {
 public:
  struct Entry {
    uint64_t begin = 0, size = 0;  // range in the file, in bytes
  };

  // Error kInvalid, which names the file, if the directory is missing, lies outside the file or has
  // more than 2^20 entries.
  explicit ZipArchive(const std::filesystem::path& path);

  const std::string& name() const { return name_; }
  // Location of an entry's data. Error kInvalid if the entry does not exist, is compressed or lies
  // outside the file.
  Entry Find(const std::string& entry) const;
  // The entry's bytes. Error kInvalid if there are more than `most`.
  std::string Read(const std::string& entry, uint64_t most) const;
  // The first name that ends with `ending`; empty if there is none.
  std::string NameEndingWith(const std::string& ending) const;

 private:
  struct Record {
    uint16_t method = 0;
    uint64_t header = 0, stored = 0;
  };
  std::string Bytes(uint64_t begin, uint64_t size) const;
  void ReadDirectory(uint64_t begin, uint64_t size, uint64_t entries);

  std::string name_;
  mutable std::ifstream in_;
  uint64_t size_ = 0;
  std::map<std::string, Record, std::less<>> records_;
};

}  // namespace switchyard
