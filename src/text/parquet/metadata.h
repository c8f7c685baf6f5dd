// Footer and page headers of a Parquet file (https://github.com/apache/parquet-format).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/parquet/cursor.h"

namespace switchyard::parquet {

// Numbers of the format. Values of a file may be outside of the enumerations.
enum class PhysicalType : uint8_t {
  kBoolean,
  kInt32,
  kInt64,
  kInt96,
  kFloat,
  kDouble,
  kByteArray,
  kFixedLenByteArray,
};
enum class Codec : uint8_t { kUncompressed, kSnappy, kGzip, kLzo, kBrotli, kLz4, kZstd, kLz4Raw };
enum class Encoding : uint8_t {
  kPlain = 0,
  kPlainDictionary = 2,
  kRle = 3,
  kBitPacked = 4,
  kDeltaBinaryPacked = 5,
  kDeltaLengthByteArray = 6,
  kDeltaByteArray = 7,
  kRleDictionary = 8,
  kByteStreamSplit = 9,
};
enum class Repetition : uint8_t { kRequired, kOptional, kRepeated };

// "ZSTD", "BYTE_STREAM_SPLIT"; "codec 9" for unknown numbers.
std::string NameOf(Codec codec);
std::string NameOf(Encoding encoding);
std::string NameOf(PhysicalType type);
// Logical types, by their field ids: "DATE", "annotation 99".
std::string NameOfLogical(int64_t logical_type);
// The older annotations of types: "DECIMAL", "annotation 99"; "none" for −1.
std::string NameOfConverted(int64_t converted_type);

// A node of the schema: a group of columns, or a leaf, which is a column. Nodes are in depth-first
// order; node 0 is the root.
struct SchemaNode {
  std::string name;
  Repetition repetition = Repetition::kRequired;
  int64_t num_children = 0;          // 0: a leaf
  std::optional<PhysicalType> type;  // only of leaves
  int64_t converted_type = -1;       // the older annotation of a type; −1: none
  int64_t logical_type = 0;          // field id in the union LogicalType; 0: none
  bool is_signed = true;             // only of the logical type INTEGER
  int64_t column = -1;               // index of a leaf in the row groups' columns

  bool is_list() const { return converted_type == 3 || logical_type == 3; }
  bool is_map() const { return converted_type == 1 || converted_type == 2 || logical_type == 2; }
};

// The pages of a column in a row group: bytes [begin, end) of the file.
struct ColumnChunk {
  PhysicalType type = PhysicalType::kBoolean;
  Codec codec = Codec::kUncompressed;
  int64_t num_values = 0;  // with nulls
  uint64_t begin = 0, end = 0;
  bool encrypted = false, elsewhere = false;  // elsewhere: in another file
};

struct RowGroup {
  int64_t num_rows = 0;
  std::vector<ColumnChunk> columns;
};

struct Metadata {
  std::vector<SchemaNode> schema;
  std::vector<RowGroup> row_groups;
};

// A column's name in quotes, for messages. The name may be damaged: control characters are escaped,
// what is not UTF-8 is replaced, and a long name is cut.
std::string QuotedColumn(std::string_view name);

// Names of the root's children.
std::vector<std::string> RootColumns(const Metadata& metadata);

// Parses the footer of a file whose bytes are `file`. Throws Error kInvalid that names `name` and
// the offset if
// - there is no magic number at both ends, or the footer is encrypted;
// - the footer is outside of the file, or has more than 64 MiB;
// - Thrift is malformed, or the schema is no tree;
// - chunks are outside of the file;
// - it has so many nodes, row groups or chunks that they take much more memory than the footer.
Metadata ReadMetadata(std::span<const uint8_t> file, const std::string& name);

struct PageHeader {
  enum Kind : uint8_t { kData, kIndex, kDictionary, kDataV2 };
  Kind kind = kIndex;
  uint64_t bytes = 0, compressed_bytes = 0;  // of the page after its header
  int64_t num_values = 0;                    // with nulls
  Encoding encoding = Encoding::kPlain;
  Encoding levels[2] = {Encoding::kRle, Encoding::kRle};  // kData: definition, repetition levels
  // kDataV2: the levels lie before the values and are never compressed.
  uint64_t definition_bytes = 0, repetition_bytes = 0;
  bool compressed = true;
};

// Most values of a page, and bytes of a page after decompression. Writers start a new page after
// about 1 MB; the limits bound the memory that a damaged file takes.
inline constexpr int64_t kMaxPageValues = 1 << 24;
inline constexpr uint64_t kMaxPageBytes = uint64_t{1} << 28;

// Reads a page header, and moves the cursor to the page. Throws Error kInvalid for malformed
// headers and for sizes that are negative or above the limits.
PageHeader ReadPageHeader(Cursor* cursor);

}  // namespace switchyard::parquet
