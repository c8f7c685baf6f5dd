#include "text/parquet/metadata.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/json.h"

namespace switchyard::parquet {
namespace {

using Type = ThriftReader::Type;

constexpr std::string_view kParquetMagic = "PAR1", kEncryptedMagic = "PARE";
constexpr uint64_t kMaxFooterBytes = uint64_t{64} << 20;
constexpr size_t kMaxSchemaDepth = 64;
// A node or chunk of a few bytes takes about a hundred bytes of memory. Writers take about a
// hundred bytes for a chunk.
constexpr size_t kMaxSchemaNodes = size_t{1} << 16, kMaxRowGroups = size_t{1} << 20,
                 kMaxChunks = size_t{1} << 20;

constexpr std::string_view kCodecNames[] = {"UNCOMPRESSED", "SNAPPY", "GZIP", "LZO",
                                            "BROTLI",       "LZ4",    "ZSTD", "LZ4_RAW"};
constexpr std::string_view kTypeNames[] = {
    "BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
constexpr std::string_view kEncodingNames[] = {
    "PLAIN",          "GROUP_VAR_INT",       "PLAIN_DICTIONARY",        "RLE",
    "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
    "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};

// By field id of LogicalType, and by number of ConvertedType.
constexpr std::string_view kLogicalNames[] = {
    "none", "STRING",    "MAP",      "LIST",     "ENUM",     "DECIMAL", "DATE",
    "TIME", "TIMESTAMP", "INTERVAL", "INTEGER",  "UNKNOWN",  "JSON",    "BSON",
    "UUID", "FLOAT16",   "VARIANT",  "GEOMETRY", "GEOGRAPHY"};
constexpr std::string_view kConvertedNames[] = {"UTF8",
                                                "MAP",
                                                "MAP_KEY_VALUE",
                                                "LIST",
                                                "ENUM",
                                                "DECIMAL",
                                                "DATE",
                                                "TIME_MILLIS",
                                                "TIME_MICROS",
                                                "TIMESTAMP_MILLIS",
                                                "TIMESTAMP_MICROS",
                                                "UINT_8",
                                                "UINT_16",
                                                "UINT_32",
                                                "UINT_64",
                                                "INT_8",
                                                "INT_16",
                                                "INT_32",
                                                "INT_64",
                                                "JSON",
                                                "BSON",
                                                "INTERVAL"};

std::string NameAt(std::span<const std::string_view> names, int64_t index, std::string_view what) {
  if (index >= 0 && index < std::ssize(names)) return std::string(names[index]);
  return fmt::format("{} {}", what, index);
}

// A number of an enumeration. Numbers above 255 become 255, which is unknown too.
template <typename Enum>
Enum EnumOf(int64_t value) {
  return static_cast<Enum>(value < 0 ? 255 : std::min<int64_t>(value, 255));
}

class FooterReader {
 public:
  FooterReader(Cursor* cursor, uint64_t data_end, const std::string& name)
      : cursor_(cursor), thrift_(cursor), data_end_(data_end), name_(name) {}

  Metadata Read() && {
    thrift_.Struct([&](int64_t id, Type type) {
      if (id == 2) {
        metadata_.schema.clear();
        thrift_.Structs(type, [&] { ReadNode(); });
      } else if (id == 4) {
        metadata_.row_groups.clear();
        thrift_.Structs(type, [&] { ReadRowGroup(); });
      } else {
        return false;
      }
      return true;
    });
    CheckSchema();
    return std::move(metadata_);
  }

 private:
  static constexpr int64_t kInteger = 10;  // field id in LogicalType

  void CheckCount(size_t count, size_t most, std::string_view what) const {
    if (count == most) cursor_->Fail(fmt::format("the footer has more than {} {}", most, what));
  }

  void ReadNode() {
    CheckCount(metadata_.schema.size(), kMaxSchemaNodes, "nodes of the schema");
    SchemaNode node;
    bool named = false;
    thrift_.Struct([&](int64_t id, Type type) {
      switch (id) {
        case 1:
          node.type = EnumOf<PhysicalType>(thrift_.Integer(type));
          return true;
        case 3:
          node.repetition = EnumOf<Repetition>(thrift_.Integer(type));
          return true;
        case 4:
          node.name = thrift_.String(type);
          named = true;
          return true;
        case 5:
          node.num_children = thrift_.Integer(type);
          return true;
        case 6:
          node.converted_type = thrift_.Integer(type);
          return true;
        case 10:
          thrift_.StructField(type, [&](int64_t kind, Type of) {
            node.logical_type = kind;
            if (kind != kInteger) return false;
            thrift_.StructField(of, [&](int64_t field, Type of_field) {
              if (field != 2) return false;
              node.is_signed = thrift_.Bool(of_field);
              return true;
            });
            return true;
          });
          return true;
        default:
          return false;
      }
    });
    if (!named) cursor_->Fail("a node of the schema has no name");
    if (node.repetition > Repetition::kRepeated)
      cursor_->Fail("a node of the schema has an unknown repetition");
    metadata_.schema.push_back(std::move(node));
  }

  void ReadRowGroup() {
    CheckCount(metadata_.row_groups.size(), kMaxRowGroups, "row groups");
    RowGroup group;
    bool counted = false;
    thrift_.Struct([&](int64_t id, Type type) {
      if (id == 1) {
        group.columns.clear();
        thrift_.Structs(type, [&] {
          CheckCount(chunks_++, kMaxChunks, "columns of row groups");
          group.columns.push_back(ReadChunk());
        });
      } else if (id == 3) {
        group.num_rows = thrift_.Integer(type);
        counted = true;
      } else {
        return false;
      }
      return true;
    });
    if (!counted || group.num_rows < 0) cursor_->Fail("a row group has no number of rows");
    metadata_.row_groups.push_back(std::move(group));
  }

  ColumnChunk ReadChunk() {
    ColumnChunk chunk;
    bool described = false;
    thrift_.Struct([&](int64_t id, Type type) {
      switch (id) {
        case 1:
          chunk.elsewhere = !thrift_.String(type).empty();
          return true;
        case 3:
          ReadChunkMetadata(type, &chunk);
          described = true;
          return true;
        case 8:
        case 9:
          chunk.encrypted = true;
          return false;
        default:
          return false;
      }
    });
    if (!described && !chunk.encrypted) cursor_->Fail("a column of a row group has no metadata");
    return chunk;
  }

  void ReadChunkMetadata(Type type, ColumnChunk* chunk) {
    int64_t data = -1, dictionary = 0, bytes = -1;
    thrift_.StructField(type, [&](int64_t id, Type of) {
      switch (id) {
        case 1:
          chunk->type = EnumOf<PhysicalType>(thrift_.Integer(of));
          return true;
        case 4:
          chunk->codec = EnumOf<Codec>(thrift_.Integer(of));
          return true;
        case 5:
          chunk->num_values = thrift_.Integer(of);
          return true;
        case 7:
          bytes = thrift_.Integer(of);
          return true;
        case 9:
          data = thrift_.Integer(of);
          return true;
        case 11:
          dictionary = thrift_.Integer(of);
          return true;
        default:
          return false;
      }
    });
    // Some writers set the dictionary's offset to 0 if there is no dictionary.
    const int64_t begin = dictionary > 0 && dictionary < data ? dictionary : data;
    if (begin < 0 || bytes < 0 || chunk->num_values < 0)
      cursor_->Fail("a column of a row group has a negative or no offset or size");
    chunk->begin = static_cast<uint64_t>(begin);
    if (chunk->begin > data_end_ || static_cast<uint64_t>(bytes) > data_end_ - chunk->begin)
      cursor_->Fail("the pages of a column lie outside of the file");
    chunk->end = chunk->begin + static_cast<uint64_t>(bytes);
  }

  // The nodes must be one tree, and every row group must have a chunk for each leaf.
  void CheckSchema() {
    std::vector<int64_t> open;  // children that are still missing, for each group on the path
    int64_t columns = 0;
    for (size_t i = 0; i < metadata_.schema.size(); ++i) {
      SchemaNode& node = metadata_.schema[i];
      if (i > 0 && open.empty()) throw Invalid("{}: the schema has more than one root", name_);
      if (i > 0) --open.back();
      // The root may have no children; then the file has no columns.
      if (i > 0 && node.num_children == 0) {
        if (!node.type) throw Invalid("{}: column {} has no type", name_, QuotedColumn(node.name));
        node.column = columns++;
      }
      if (node.num_children < 0) throw Invalid("{}: the schema is damaged", name_);
      if (i == 0 || node.num_children > 0) open.push_back(node.num_children);
      if (open.size() > kMaxSchemaDepth) throw Invalid("{}: the schema is too deep", name_);
      while (!open.empty() && open.back() == 0) open.pop_back();
    }
    if (metadata_.schema.empty() || !open.empty())
      throw Invalid("{}: the schema is incomplete", name_);
    for (size_t i = 0; i < metadata_.row_groups.size(); ++i) {
      const int64_t chunks = std::ssize(metadata_.row_groups[i].columns);
      if (chunks == columns) continue;
      throw Invalid("{}: row group {} has {} columns, but the schema has {}", name_, i, chunks,
                    columns);
    }
  }

  Cursor* cursor_;
  ThriftReader thrift_;
  uint64_t data_end_;
  const std::string& name_;
  Metadata metadata_;
  size_t chunks_ = 0;  // of all row groups
};

// A size or count of a page header.
int64_t PageNumber(ThriftReader* thrift, Type type, Cursor* cursor, int64_t limit,
                   std::string_view what) {
  const int64_t value = thrift->Integer(type);
  if (value < 0 || value > limit)
    cursor->Fail(fmt::format("a page has {} {}, at most {} are allowed", value, what, limit));
  return value;
}

}  // namespace

std::string NameOf(Codec codec) {
  return NameAt(kCodecNames, static_cast<int64_t>(codec), "codec");
}
std::string NameOf(Encoding encoding) {
  return NameAt(kEncodingNames, static_cast<int64_t>(encoding), "encoding");
}
std::string NameOf(PhysicalType type) {
  return NameAt(kTypeNames, static_cast<int64_t>(type), "type");
}
std::string NameOfLogical(int64_t logical_type) {
  return NameAt(kLogicalNames, logical_type, "annotation");
}
std::string NameOfConverted(int64_t converted_type) {
  if (converted_type == -1) return "none";
  return NameAt(kConvertedNames, converted_type, "annotation");
}

std::string QuotedColumn(std::string_view name) {
  constexpr size_t kMostShown = 200;
  using Json = nlohmann::ordered_json;
  const bool cut = name.size() > kMostShown;
  return Json(name.substr(0, kMostShown)).dump(-1, ' ', false, Json::error_handler_t::replace) +
         (cut ? "…" : "");
}

std::vector<std::string> RootColumns(const Metadata& metadata) {
  std::vector<std::string> names;
  for (size_t i = 1; i < metadata.schema.size();) {
    names.push_back(metadata.schema[i].name);
    for (int64_t open = 1; open > 0; ++i) open += metadata.schema[i].num_children - 1;
  }
  return names;
}

Metadata ReadMetadata(std::span<const uint8_t> file, const std::string& name) {
  // The file ends with the footer's length and the magic number.
  constexpr uint64_t kTail = sizeof(uint32_t) + kParquetMagic.size();
  const auto text = [&](uint64_t at) {
    return std::string_view(reinterpret_cast<const char*>(file.data()) + at, kParquetMagic.size());
  };
  if (file.size() < kParquetMagic.size() + kTail)
    throw Invalid("{}: has {} bytes, which is too short for a Parquet file", name, file.size());
  const uint64_t tail = file.size() - kTail;
  if (text(file.size() - kParquetMagic.size()) == kEncryptedMagic)
    throw Invalid("{}: the footer is encrypted; encrypted Parquet files are not supported", name);
  if (text(0) != kParquetMagic || text(file.size() - kParquetMagic.size()) != kParquetMagic)
    throw Invalid("{}: does not begin and end with \"PAR1\"; it is truncated or no Parquet file",
                  name);
  uint32_t bytes;
  std::memcpy(&bytes, file.data() + tail, sizeof bytes);
  if (bytes > tail - kParquetMagic.size() || bytes > kMaxFooterBytes) {
    throw Invalid("{}: byte {}: the footer has {} bytes, which is more than the file or {} MiB",
                  name, tail, bytes, kMaxFooterBytes >> 20);
  }
  const uint64_t begin = tail - bytes;
  Cursor cursor(file.subspan(begin, bytes), name, begin);
  return FooterReader(&cursor, begin, name).Read();
}

PageHeader ReadPageHeader(Cursor* cursor) {
  ThriftReader thrift(cursor);
  PageHeader page;
  int64_t kind = -1, described = -1;
  const auto values = [&](Type type) {
    return PageNumber(&thrift, type, cursor, kMaxPageValues, "values");
  };
  const auto bytes = [&](Type type) {
    return static_cast<uint64_t>(
        PageNumber(&thrift, type, cursor, static_cast<int64_t>(kMaxPageBytes), "bytes"));
  };
  // The headers of data pages and of dictionary pages begin with the same two fields.
  const auto common = [&](int64_t id, Type type, int64_t encoding) {
    if (id == 1) {
      page.num_values = values(type);
    } else if (id == encoding) {
      page.encoding = EnumOf<Encoding>(thrift.Integer(type));
    } else {
      return false;
    }
    return true;
  };
  thrift.Struct([&](int64_t id, Type type) {
    switch (id) {
      case 1:
        kind = thrift.Integer(type);
        return true;
      case 2:
        page.bytes = bytes(type);
        return true;
      case 3:
        page.compressed_bytes = bytes(type);
        return true;
      case 5:
        described = PageHeader::kData;
        thrift.StructField(type, [&](int64_t field, Type of) {
          if (field != 3 && field != 4) return common(field, of, 2);
          page.levels[field - 3] = EnumOf<Encoding>(thrift.Integer(of));
          return true;
        });
        return true;
      case 7:
        described = PageHeader::kDictionary;
        thrift.StructField(type, [&](int64_t field, Type of) { return common(field, of, 2); });
        return true;
      case 8:
        described = PageHeader::kDataV2;
        thrift.StructField(type, [&](int64_t field, Type of) {
          if (field != 5 && field != 6 && field != 7) return common(field, of, 4);
          if (field == 7) {
            page.compressed = thrift.Bool(of);
          } else {
            (field == 5 ? page.definition_bytes : page.repetition_bytes) = bytes(of);
          }
          return true;
        });
        return true;
      default:
        return false;
    }
  });
  if (kind != PageHeader::kIndex && (kind != described || kind < 0))
    cursor->Fail("a page has an unknown type, or the header of another type");
  page.kind = static_cast<PageHeader::Kind>(kind);
  return page;
}

}  // namespace switchyard::parquet
