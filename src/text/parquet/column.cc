#include "text/parquet/column.h"

#include <bit>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "text/parquet/codecs.h"

namespace switchyard::parquet {

void MemoryBudget::Take(uint64_t bytes, const std::string& where) {
  if (bytes > left_) {
    throw Invalid(
        "{}: needs {} bytes of memory, but pages and dictionaries of all columns may take only {}",
        where, bytes, bytes_);
  }
  left_ -= bytes;
}

ColumnReader::ColumnReader(std::span<const uint8_t> file, const std::string& name, size_t row_group,
                           const ColumnChunk& chunk, const Leaf& leaf, MemoryBudget* budget)
    : chunk_(chunk),
      leaf_(leaf),
      where_(fmt::format("{}: row group {}, column {}", name, row_group, QuotedColumn(leaf.name))),
      budget_(budget),
      pages_(file.subspan(chunk.begin, chunk.end - chunk.begin), where_, chunk.begin),
      left_(chunk.num_values) {
  if (chunk.encrypted) throw Invalid("{}: encrypted columns are not supported", where_);
  if (chunk.elsewhere) throw Invalid("{}: columns in other files are not supported", where_);
  if (chunk.type != leaf.type) {
    throw Invalid("{}: has the type {}, but {} in the schema", where_, NameOf(chunk.type),
                  NameOf(leaf.type));
  }
  CheckCodec(chunk.codec, where_);
}

std::optional<Entry> ColumnReader::Next() {
  if (left_ == 0) return std::nullopt;
  while (page_left_ == 0) BeginPage();
  --left_;
  --page_left_;
  Entry entry;
  if (repetitions_) entry.repetition = repetitions_->Next();
  if (definitions_) entry.definition = definitions_->Next();
  if (entry.repetition > leaf_.max_repetition || entry.definition > leaf_.max_definition)
    throw Invalid("{}: a level is larger than the schema allows", page_where_);
  if (entry.definition < leaf_.max_definition) return entry;
  if (values_ == nullptr) throw Invalid("{}: the values are missing", page_where_);
  entry.value = values_->Next();
  return entry;
}

void ColumnReader::BeginPage() {
  const uint64_t at = chunk_.begin + pages_.position();
  if (pages_.left() == 0) {
    throw Invalid("{}: byte {}: {} of {} values are missing", where_, at, left_, chunk_.num_values);
  }
  const PageHeader page = ReadPageHeader(&pages_);
  const std::span<const uint8_t> data = pages_.Take(page.compressed_bytes, "a page");
  page_where_ = fmt::format("{}, page at byte {}", where_, at);
  if (page.kind == PageHeader::kDictionary) {
    ReadDictionary(page, data);
  } else if (page.kind != PageHeader::kIndex) {
    BeginData(page, data);
  }
}

void ColumnReader::ReadDictionary(const PageHeader& page, std::span<const uint8_t> data) {
  // Values of a page may point into the dictionary.
  if (has_dictionary_) throw Invalid("{}: a second dictionary", page_where_);
  if (page.encoding != Encoding::kPlain && page.encoding != Encoding::kPlainDictionary) {
    throw Invalid("{}: the encoding {} is not supported for dictionaries", page_where_,
                  NameOf(page.encoding));
  }
  // A bool takes a bit, and other values take a byte or more.
  if (static_cast<uint64_t>(page.num_values) > page.bytes * 8)
    throw Invalid("{}: a dictionary of {} bytes has {} values", page_where_, page.bytes,
                  page.num_values);
  const uint64_t memory =
      page.bytes + static_cast<uint64_t>(page.num_values) * sizeof(dictionary_[0]);
  budget_->Take(memory, page_where_);
  dictionary_taken_ = memory;
  dictionary_bytes_ = Decompress(chunk_.codec, data, page.bytes, page_where_);
  const auto values = MakeValueDecoder(Encoding::kPlain, leaf_.type,
                                       Cursor(dictionary_bytes_, page_where_), nullptr);
  dictionary_.reserve(static_cast<size_t>(page.num_values));
  for (int64_t i = 0; i < page.num_values; ++i) dictionary_.push_back(values->Next());
  has_dictionary_ = true;
}

std::optional<HybridDecoder> ColumnReader::LevelsOf(std::span<const uint8_t> data,
                                                    uint32_t max) const {
  if (max == 0) return std::nullopt;
  return HybridDecoder(Cursor(data, page_where_), std::bit_width(max));
}

void ColumnReader::BeginData(const PageHeader& page, std::span<const uint8_t> data) {
  if (page.num_values > left_) {
    throw Invalid("{}: has {} values, but only {} of the column are left", page_where_,
                  page.num_values, left_);
  }
  const bool second = page.kind == PageHeader::kDataV2;
  std::span<const uint8_t> repetitions, definitions;
  uint64_t bytes = page.bytes;
  if (second) {
    Cursor levels(data, page_where_);
    repetitions = levels.Take(page.repetition_bytes, "the repetition levels");
    definitions = levels.Take(page.definition_bytes, "the definition levels");
    data = data.subspan(levels.position());
    if (levels.position() > bytes)
      throw Invalid("{}: the levels are larger than the page", page_where_);
    bytes -= levels.position();
  }
  const bool compressed = (!second || page.compressed) && !data.empty();
  // The decoders point into the bytes of the last page, so they end first.
  values_.reset();
  page_bytes_ = {};
  budget_->Return(std::exchange(page_taken_, 0));
  // Texts with common prefixes are put together outside of the page. None is longer than the page.
  const uint64_t memory = page.encoding == Encoding::kDeltaByteArray ? 2 * bytes : bytes;
  budget_->Take(memory, page_where_);
  page_taken_ = memory;
  page_bytes_ =
      Decompress(compressed ? chunk_.codec : Codec::kUncompressed, data, bytes, page_where_);
  Cursor values(page_bytes_, page_where_);
  if (!second) {
    const auto levels = [&](uint32_t max, Encoding encoding) -> std::span<const uint8_t> {
      if (max == 0) return {};
      if (encoding != Encoding::kRle) {
        throw Invalid("{}: the encoding {} is not supported for levels", page_where_,
                      NameOf(encoding));
      }
      return values.Take(values.Read<uint32_t>("the length of levels"), "levels");
    };
    repetitions = levels(leaf_.max_repetition, page.levels[1]);
    definitions = levels(leaf_.max_definition, page.levels[0]);
  }
  repetitions_ = LevelsOf(repetitions, leaf_.max_repetition);
  definitions_ = LevelsOf(definitions, leaf_.max_definition);
  page_left_ = page.num_values;
  // A page of nulls may have no bytes at all, not even the header of its encoding.
  if (page_left_ > 0 && (values.left() > 0 || leaf_.max_definition == 0)) {
    values_ = MakeValueDecoder(page.encoding, leaf_.type, values,
                               has_dictionary_ ? &dictionary_ : nullptr);
  }
}

}  // namespace switchyard::parquet
