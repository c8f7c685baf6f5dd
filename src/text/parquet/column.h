// The values of one column in one row group, page by page.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/parquet/encodings.h"
#include "text/parquet/metadata.h"

namespace switchyard::parquet {

// A leaf of the schema with its largest levels (Melnik et al., "Dremel: Interactive Analysis of
// Web-Scale Datasets", VLDB 2010). The definition level of an entry is the number of optional and
// repeated nodes on the path to the leaf that are present. The repetition level is the number of
// the repeated node, counted from the root, at which the entry continues a list; 0: a new row.
struct Leaf {
  std::string name;  // "messages.list.element.role"
  PhysicalType type = PhysicalType::kByteArray;
  size_t column = 0;  // index in the row groups' columns
  uint32_t max_definition = 0, max_repetition = 0;
};

struct Entry {
  uint32_t repetition = 0, definition = 0;
  Value value;  // only if `definition` is max_definition
};

// Memory that the columns of a file may take together: a small file could have thousands of columns
// with large pages of equal bytes.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t bytes) : bytes_(bytes), left_(bytes) {}
  // Throws Error kInvalid that names `where` if less is left.
  void Take(uint64_t bytes, const std::string& where);
  void Return(uint64_t bytes) { left_ += bytes; }

 private:
  uint64_t bytes_, left_;
};

// Reads the entries of a chunk in order. Keeps one page, and the dictionary, in memory: at most
// kMaxPageBytes each after decompression, and the values of the dictionary. Every error names the
// file, row group, column, page and offset. Not thread-safe.
class ColumnReader {
 public:
  // `file`: bytes of the whole file `name`, which must outlive the reader; so must `chunk`, `leaf`
  // and `budget`, which gives the memory of pages and dictionaries. Throws Error kInvalid for a
  // chunk that is encrypted, in another file, of another type or compressed with a codec that
  // Switchyard does not read.
  ColumnReader(std::span<const uint8_t> file, const std::string& name, size_t row_group,
               const ColumnChunk& chunk, const Leaf& leaf, MemoryBudget* budget);
  ~ColumnReader() { budget_->Return(dictionary_taken_ + page_taken_); }
  ColumnReader(const ColumnReader&) = delete;
  ColumnReader& operator=(const ColumnReader&) = delete;

  // Returns nothing after the last entry. A text in the entry is valid until the next call. Throws
  // Error kInvalid for damaged pages, for encodings that Switchyard does not read, and if the
  // budget is exceeded.
  std::optional<Entry> Next();

  const std::string& where() const { return where_; }  // "a.parquet: row group 0, column \"text\""

 private:
  void BeginPage();
  void ReadDictionary(const PageHeader& page, std::span<const uint8_t> data);
  void BeginData(const PageHeader& page, std::span<const uint8_t> data);
  std::optional<HybridDecoder> LevelsOf(std::span<const uint8_t> data, uint32_t max) const;

  const ColumnChunk& chunk_;
  const Leaf& leaf_;
  std::string where_, page_where_;
  MemoryBudget* budget_;
  uint64_t dictionary_taken_ = 0, page_taken_ = 0;  // of the budget
  Cursor pages_;
  int64_t left_ = 0;       // entries of the chunk that were not read
  int64_t page_left_ = 0;  // of the present page
  bool has_dictionary_ = false;
  std::vector<uint8_t> dictionary_bytes_, page_bytes_;
  std::vector<Value> dictionary_;
  std::optional<HybridDecoder> repetitions_, definitions_;
  std::unique_ptr<ValueDecoder> values_;
};

}  // namespace switchyard::parquet
