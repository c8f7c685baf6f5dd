#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/testing.h"
#include "text/parquet/codecs.h"
#include "text/parquet/rows.h"

namespace switchyard::parquet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

std::string Contents(const std::string& name) {
  std::ifstream in(std::string(SWITCHYARD_TEST_DATA "/parquet/") + name, std::ios::binary);
  EXPECT_TRUE(in) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// The rows of a file, with the columns `wanted`; empty: all columns.
std::vector<Json> Rows(const std::string& bytes, std::vector<std::string_view> wanted = {},
                       std::vector<int64_t>* groups = nullptr, RowLimits limits = {}) {
  const std::string name = "a.parquet";
  Metadata metadata = ReadMetadata(BytesOf(bytes), name);
  const std::vector<std::string> columns = RootColumns(metadata);
  if (wanted.empty()) wanted.assign(columns.begin(), columns.end());
  RowReader reader(BytesOf(bytes), name, std::move(metadata), wanted, limits);
  std::vector<Json> rows;
  while (auto row = reader.Next()) {
    rows.push_back(std::move(row->values));
    if (groups != nullptr) groups->push_back(row->row_group * 1000 + row->row);
  }
  return rows;
}

std::vector<Json> Lines(const std::string& name) {
  std::vector<Json> rows;
  std::ifstream in(std::string(SWITCHYARD_TEST_DATA "/parquet/") + name);
  for (std::string line; std::getline(in, line);) rows.push_back(Json::parse(line));
  EXPECT_FALSE(rows.empty()) << name;
  return rows;
}

TEST(ParquetTest, CodecsPagesAndEncodingsGiveTheSameTexts) {
  const std::vector<Json> want = Lines("texts.jsonl");
  for (const char* name :
       {"texts_plain", "texts_dictionary", "texts_fallback", "texts_snappy_v2", "texts_gzip",
        "texts_lengths", "texts_prefixes", "texts_zstd", "texts_zstd_fast"}) {
    EXPECT_EQ(Rows(Contents(std::string(name) + ".parquet"), {"text"}), want) << name;
  }
  std::vector<Json> required = want;
  for (Json& row : required) {
    if (row.empty()) row["text"] = "";
  }
  EXPECT_EQ(Rows(Contents("texts_required.parquet")), required);
}

TEST(ParquetTest, RowsAreNumberedWithinTheirRowGroup) {
  std::vector<int64_t> numbers;
  Rows(Contents("texts_dictionary.parquet"), {"text"}, &numbers);
  ASSERT_EQ(numbers.size(), 60u);
  for (size_t i = 0; i < numbers.size(); ++i)
    EXPECT_EQ(numbers[i], static_cast<int64_t>(i / 17 * 1000 + i % 17));
}

TEST(ParquetTest, ListsAndStructsBecomeJson) {
  for (const std::string& name : std::vector<std::string>{"chats", "rollouts", "types"}) {
    const std::vector<Json> rows = Rows(Contents(name + ".parquet")), want = Lines(name + ".jsonl");
    ASSERT_EQ(rows.size(), want.size()) << name;
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], want[i]) << name << " " << i;
  }
}

TEST(ParquetTest, AFileWithoutRowsHasNone) { EXPECT_TRUE(Rows(Contents("empty.parquet")).empty()); }

TEST(ParquetTest, UnsupportedFilesAreRefusedByName) {
  const auto error = [](const std::string& name) {
    return ErrorOf([&] { Rows(Contents(name), {"text", "tools"}); });
  };
  const std::string place = "a.parquet: row group 0, column \"text\": ";
  EXPECT_THAT(error("lz4.parquet"), StartsWith(place + "the codec LZ4_RAW is not supported"));
  EXPECT_THAT(error("brotli.parquet"), StartsWith(place + "the codec BROTLI is not supported"));
  EXPECT_THAT(error("split.parquet"),
              AllOf(StartsWith("a.parquet: row group 0, column \"tools\", page at byte "),
                    HasSubstr("the encoding BYTE_STREAM_SPLIT is not supported for values of")));
  EXPECT_THAT(error("map.parquet"), HasSubstr("column \"tools\" is a map"));
  EXPECT_THAT(error("decimal.parquet"),
              AllOf(HasSubstr("column \"text\" has neither texts, integers"),
                    HasSubstr("with the annotation DECIMAL are not supported")));
}

TEST(ParquetTest, DamageIsNamedWithItsOffset) {
  const std::string whole = Contents("texts_plain.parquet");
  const auto error = [](const std::string& bytes) {
    return ErrorOf([&] { Rows(bytes, {"text"}); });
  };
  EXPECT_THAT(error("PAR1"), HasSubstr("a.parquet: has 4 bytes"));
  EXPECT_THAT(error(whole.substr(0, whole.size() - 1)), HasSubstr("it is truncated"));
  std::string changed = whole;
  changed.replace(whole.size() - 4, 4, "PARE");
  EXPECT_THAT(error(changed), HasSubstr("the footer is encrypted"));
  changed = whole;
  changed[whole.size() - 5] = '\x7f';
  EXPECT_THAT(error(changed), HasSubstr("the footer has"));
  changed = whole;  // a text that is not UTF-8
  changed[changed.find("the same text")] = '\xff';
  EXPECT_THAT(error(changed), HasSubstr("column \"text\": row 1: a text is not UTF-8"));
  changed = whole;  // the length of a text
  changed[changed.find("the same text") - 1] = '\x7f';
  EXPECT_THAT(error(changed), AllOf(HasSubstr("row group 0, column \"text\", page at byte "),
                                    HasSubstr("a text of 2130706445 bytes does not fit")));
}

TEST(ParquetTest, PagesMayBeStoredOrRepeatThemselves) {
  const std::string where = "a";
  const auto text = [&](Codec codec, const std::string& data, uint64_t bytes) {
    const std::vector<uint8_t> out = Decompress(codec, BytesOf(data), bytes, where);
    return std::string(out.begin(), out.end());
  };
  const auto error = [&](Codec codec, const std::string& data, uint64_t bytes) {
    return ErrorOf([&] { text(codec, data, bytes); });
  };
  // A literal, and copies with distances of one, two and four bytes; the first one overlaps itself.
  // Then a literal whose length follows the tag.
  const std::string snappy(
      "\x11\x04"
      "ab\x0d\x02\x0e\x04\x00\x0b\x0d\x00\x00\x00\xf0\x00x",
      17);
  EXPECT_EQ(text(Codec::kSnappy, snappy, 17), "ababababababaabax");
  EXPECT_THAT(error(Codec::kSnappy, std::string("\x04\x0d\x01", 3), 4), HasSubstr("begins before"));
  EXPECT_THAT(error(Codec::kSnappy, std::string("\x04\x00\x61", 3), 5),
              HasSubstr("another length"));
  EXPECT_THAT(error(Codec::kSnappy, std::string("\x01\x04\x61\x62", 4), 1),
              HasSubstr("more bytes"));
  EXPECT_THAT(error(Codec::kSnappy, std::string("\x04\x00\x61", 3), 4), HasSubstr("fewer bytes"));
  EXPECT_THAT(error(Codec::kSnappy, "a", 1 << 20), HasSubstr("cannot decompress to"));
  // Two members with a stored block each; the first one has a name.
  const std::string header("\x1f\x8b\x08\x00\0\0\0\0\0\x03", 10);
  const std::string block("\x01\x05\x00\xfa\xffhello\x86\xa6\x10\x36\x05\0\0\0", 18);
  std::string named = header;
  named[3] = 8;
  named += std::string("n\0", 2);
  EXPECT_EQ(text(Codec::kGzip, named + block + header + block, 10), "hellohello");
  std::string damaged = header + block;
  damaged[15] = 'j';
  EXPECT_THAT(error(Codec::kGzip, damaged, 5), HasSubstr("checksum"));
  EXPECT_THAT(error(Codec::kGzip, header + block.substr(0, 7), 5), HasSubstr("a stored block of"));
}

// A page with many blocks of no bytes does not take long: tables are not made for each of them.
TEST(ParquetTest, BlocksOfADamagedPageAreBounded) {
  const std::string where = "a";
  const std::string header("\x1f\x8b\x08\x00\0\0\0\0\0\x03", 10);
  const std::string block("\x01\x05\x00\xfa\xffhello\x86\xa6\x10\x36\x05\0\0\0", 18);
  std::string gzip = header;
  for (int i = 0; i < 20'000; ++i) gzip += std::string("\x02\x08\x20\x80\0", 5);  // four blocks
  const std::vector<uint8_t> hello = Decompress(Codec::kGzip, BytesOf(gzip + block), 5, where);
  EXPECT_EQ(std::string(hello.begin(), hello.end()), "hello");

  // A frame that is skipped, a stored block, and a block of 9 bytes with 32512 copies of 34 bytes.
  std::string zstd("\x50\x2a\x4d\x18\x64\0\0\0", 8);
  zstd += std::string(100, 'x');
  zstd += std::string("\x28\xb5\x2f\xfd\0\0\x40\0\0abcdefgh\x4d\0\0", 20);
  zstd += std::string("\0\xff\0\0\x54\0\0\x1f\x01", 9);
  EXPECT_EQ(ErrorOf([&] { Decompress(Codec::kZstd, BytesOf(zstd), 8 + 32512 * 34, where); }),
            "a: byte 137: a block decompresses to more than 128 KiB");
  EXPECT_THAT(ErrorOf([&] { Decompress(Codec::kZstd, BytesOf(zstd), 138 << 15, where); }),
              HasSubstr("cannot decompress to"));
}

TEST(ParquetTest, PagesAndTextsOfARowTakeBoundedMemory) {
  const std::string bytes = Contents("texts_dictionary.parquet");
  const auto error = [&](RowLimits limits) {
    return ErrorOf([&] { Rows(bytes, {"text"}, nullptr, limits); });
  };
  EXPECT_THAT(error({.page_memory = 200}),
              AllOf(StartsWith("a.parquet: row group 0, column \"text\", page at byte "),
                    HasSubstr("dictionaries of all columns may take only 200")));
  // Row 3 of row group 1 has the longest text, of 700 bytes.
  EXPECT_THAT(error({.text = 699}),
              HasSubstr("row group 1, column \"text\": row 3 has more than 699 bytes of text"));
  // The memory of a row group is used again for the next one.
  EXPECT_EQ(Rows(bytes, {"text"}, nullptr, {.page_memory = 4000, .text = 700}).size(), 60u);
}

// Writers may omit the older annotation of a type.
TEST(ParquetTest, TheNewerAnnotationTellsUnsignedIntegers) {
  std::string bytes = Contents("types.parquet");
  const std::vector<Json> want = Lines("types.jsonl");
  for (const std::string name : {"u32", "u64"}) {
    // Field 6 of the node has two bytes. Field 10 has then the distance 6 from field 4.
    const size_t at = bytes.find("\x18\x03" + name + "\x25", bytes.size() / 2);
    ASSERT_NE(at, std::string::npos);
    ASSERT_EQ(bytes[at + 7], '\x4c');
    bytes.replace(at + 5, 3, "\x6c");
    bytes[bytes.size() - 8] =
        static_cast<char>(bytes[bytes.size() - 8] - 2);  // the footer's length
    const std::vector<Json> rows = Rows(bytes);
    ASSERT_EQ(rows.size(), want.size());
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], want[i]) << name << " " << i;
  }
}

TEST(ParquetTest, AFooterOfFewBytesTakesBoundedMemory) {
  const auto error = [](const std::string& footer) {
    const auto length = static_cast<uint32_t>(footer.size());
    const std::string bytes =
        "PAR1" + footer + std::string(reinterpret_cast<const char*>(&length), 4) + "PAR1";
    return ErrorOf([&] { ReadMetadata(BytesOf(bytes), "a"); });
  };
  const auto list = [](char field, uint32_t count, const std::string& element) {
    std::string all{field, '\xfc'};
    for (uint32_t rest = count; rest > 0; rest >>= 7)
      all += static_cast<char>((rest & 0x7f) | (rest > 0x7f ? 0x80 : 0));
    for (uint32_t i = 0; i < count; ++i) all += element;
    return all;
  };
  // A node with an empty name; a row group without rows; an encrypted chunk.
  EXPECT_THAT(error(list('\x29', (1 << 16) + 1, std::string("\x48\0\0", 3))),
              HasSubstr("the footer has more than 65536 nodes of the schema"));
  EXPECT_THAT(error(list('\x49', (1 << 20) + 1, std::string("\x36\0\0", 3))),
              HasSubstr("the footer has more than 1048576 row groups"));
  EXPECT_THAT(error("\x49\x1c" + list('\x19', (1 << 20) + 1, std::string("\x8c\0\0", 3))),
              HasSubstr("the footer has more than 1048576 columns of row groups"));
}

TEST(ParquetTest, NamesInErrorsAreEscapedAndCut) {
  EXPECT_EQ(QuotedColumn("Gleis\n\"1\""), R"("Gleis\n\"1\"")");
  EXPECT_EQ(QuotedColumn("a\xff"), "\"a\uFFFD\"");
  EXPECT_THAT(QuotedColumn(std::string(1000, 'a')), ::testing::SizeIs(205));
}

// Changed and truncated files give rows or an Error. The fuzzer tries more of them.
TEST(ParquetTest, SurvivesMutations) {
  std::mt19937 random(1);
  const auto survive = [](const std::string& bytes) {
    try {
      const std::string name = "a.parquet";
      Metadata metadata = ReadMetadata(BytesOf(bytes), name);
      const std::vector<std::string> columns = RootColumns(metadata);
      const std::vector<std::string_view> wanted(columns.begin(), columns.end());
      RowReader reader(BytesOf(bytes), name, std::move(metadata), wanted);
      for (int i = 0; i < 100 && reader.Next(); ++i) {
      }
    } catch (const Error&) {
    }
  };
  for (const char* name :
       {"texts_dictionary.parquet", "texts_prefixes.parquet", "texts_zstd.parquet",
        "texts_zstd_fast.parquet", "chats.parquet", "rollouts.parquet", "types.parquet"}) {
    const std::string whole = Contents(name);
    for (int n = 0; n < 400; ++n) {
      std::string changed = whole;
      for (uint32_t count = random() % 3; count < 3; ++count)
        changed[random() % changed.size()] = static_cast<char>(random());
      survive(changed);
      // With the footer of the whole file.
      const size_t cut = random() % (whole.size() / 2);
      survive(whole.substr(0, cut) + whole.substr(cut + 1 + random() % 40));
    }
  }
}

}  // namespace
}  // namespace switchyard::parquet
