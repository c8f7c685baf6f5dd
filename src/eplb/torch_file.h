// Files of torch.save: a ZIP archive with pickled objects.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/safetensors.h"

namespace switchyard {

// Reads a ZIP archive whose entries are stored without compression.

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

// Reads the subset of Python's pickle that describes saved tensors: plain values and calls. Calls
// are recorded, not executed (https://docs.python.org/3/library/pickletools.html).

// The values of a pickle refer to one another by index, so there is no ownership, and no recursion
// on deeply nested input. A value type.
class Pickle {
 public:
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kList,  // or tuple
    kDict,
    kGlobal,   // text: "module name"
    kCall,     // items: function, arguments (a list)
    kStorage,  // items: the persistent id (a list)
  };
  struct Value {
    Kind kind = Kind::kNone;
    int64_t number = 0;  // value of kBool and kInt
    std::string text;    // value of kText and kGlobal
    std::vector<uint32_t> items;
    std::vector<std::pair<uint32_t, uint32_t>> entries;  // for kDict: key, value
  };

  // Error kInvalid for truncated input, an unsupported operation or an operand that does not exist.
  // The message starts with `where`.
  Pickle(const std::string& bytes, const std::string& where);

  const Value& root() const { return values_[root_]; }
  const Value& at(uint32_t index) const { return values_[index]; }

 private:
  friend class Unpickler;
  std::vector<Value> values_;
  uint32_t root_ = 0;
};

// Reads tensors of a file written by torch.save: a ZIP archive with a pickle that describes the
// tensors, and one uncompressed entry per storage
// (https://docs.pytorch.org/docs/stable/notes/serialization.html).

// Whether the file begins like a ZIP archive.
bool IsTorchFile(const std::filesystem::path& path);

// The tensors of the saved dictionary by key; other values are ignored. Tensors that are not
// contiguous (views with other strides) are added to `scattered`. Reads only the archive's
// directory and the pickle, and runs no code of the pickle: it may contain dictionaries, lists,
// tuples, numbers, texts and tensors. Error kInvalid names the file. It is thrown for damaged or
// compressed archives, other objects, tensors larger than their storage, and big-endian files.
TensorEntries ReadTorchTensors(const std::filesystem::path& path, std::set<std::string>* scattered);

}  // namespace switchyard
