// Rows of a Parquet file as JSON objects.
//
// Memory: the mapped file, one row, and for each column that is read one page and one dictionary
// after decompression. Pages and dictionaries take at most RowLimits::page_memory in total.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/parquet/column.h"
#include "text/parquet/metadata.h"

namespace switchyard::parquet {

// Bytes that the rows of a small or damaged file may take.
struct RowLimits {
  uint64_t page_memory = uint64_t{1} << 30;  // pages and dictionaries of all columns
  uint64_t text = uint64_t{1} << 28;         // texts of a row
};

// Reads the rows of a file in order, row group by row group. Not thread-safe.
class RowReader {
 public:
  struct Row {
    int64_t row_group = 0, row = 0;  // from 0 on; `row` within the row group
    // An object of the columns that are not null. In nested structs a null field is absent too,
    // because Parquet has no absent fields. Null elements of lists are null.
    nlohmann::ordered_json values;
  };

  // `file`: bytes of the file `name`, which must outlive the reader; `metadata`: its footer. Reads
  // the columns of the root whose names are in `wanted`: texts in UTF-8, integers, floats,
  // bools, nulls, and lists and structs of them. Other columns are not decoded. Throws Error
  // kInvalid that names the column for other types (maps, dates, decimals), two columns of one
  // name, and more than 4096 columns to read.
  RowReader(std::span<const uint8_t> file, std::string name, Metadata metadata,
            std::span<const std::string_view> wanted, RowLimits limits = {});
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  // Returns nothing after the last row. Throws the errors of ColumnReader, and kInvalid for texts
  // that are not UTF-8, rows of more than kMaxPageValues entries or RowLimits::text bytes of text,
  // and columns of different length.
  std::optional<Row> Next();

 private:
  // A node on the path from the root to a leaf, and what it is in JSON.
  struct Node {
    // The field of an object that has this name; empty: the value of the node above, which is the
    // element of a list.
    std::string key;
    bool optional = false, repeated = false;  // repeated: a list, and then one element of it
    uint32_t definition = 0, repetition = 0;  // levels if the node is present
    bool is_object = false;                   // its children are fields
  };
  struct Path {
    Leaf leaf;
    std::vector<Node> nodes;  // from a column of the root to the leaf
  };
  struct Column {
    Path path;
    bool is_unsigned = false, is_null = false;  // is_null: has no values (UNKNOWN)
    // [max_repetition + 1] index in the open list of each level; element 0 is not used.
    std::vector<size_t> indexes;
    std::unique_ptr<ColumnReader> reader;
    std::optional<Entry> next;  // the first entry of the next row
  };

  size_t AddNode(size_t index, Path path, bool is_element);
  void AddLeaf(const SchemaNode& node, Path path);
  bool BeginRowGroup();
  void ReadColumn(Column* column, nlohmann::ordered_json* row);
  void Insert(const Entry& entry, Column* column, nlohmann::ordered_json* row);
  nlohmann::ordered_json JsonOf(const Value& value, const Column& column);

  std::span<const uint8_t> file_;
  std::string name_;
  Metadata metadata_;
  RowLimits limits_;
  MemoryBudget budget_;
  std::vector<Column> read_;
  size_t next_group_ = 0;
  int64_t row_ = 0, num_rows_ = 0;  // of the present row group
  int64_t row_entries_ = 0;         // of all columns of the present row
  uint64_t row_text_ = 0;           // bytes of its texts
};

}  // namespace switchyard::parquet
