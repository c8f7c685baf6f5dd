#include "text/parquet/encodings.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"

namespace switchyard::parquet {
namespace {

std::string_view TextOf(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class PlainDecoder : public ValueDecoder {
 public:
  PlainDecoder(Cursor values, PhysicalType type) : values_(values), type_(type) {}

  Value Next() override {
    constexpr std::string_view kWhat = "a value";
    switch (type_) {
      case PhysicalType::kBoolean:
        // Eight values in a byte, from the lowest bit on.
        if (bit_ == 0) byte_ = values_.Read<uint8_t>(kWhat);
        return ((byte_ >> std::exchange(bit_, (bit_ + 1) % 8)) & 1) != 0;
      case PhysicalType::kInt32:
        return int64_t{values_.Read<int32_t>(kWhat)};
      case PhysicalType::kInt64:
        return values_.Read<int64_t>(kWhat);
      case PhysicalType::kFloat:
        return double{values_.Read<float>(kWhat)};
      case PhysicalType::kDouble:
        return values_.Read<double>(kWhat);
      default:
        return TextOf(values_.Take(values_.Read<uint32_t>("the length of a text"), "a text"));
    }
  }

 private:
  Cursor values_;
  PhysicalType type_;
  uint8_t byte_ = 0;
  int bit_ = 0;
};

class DictionaryDecoder : public ValueDecoder {
 public:
  DictionaryDecoder(Cursor values, const std::vector<Value>& dictionary)
      : values_(values),
        indexes_(WithoutWidth(&values), values_.Read<uint8_t>("the bits of an index")),
        dictionary_(dictionary) {}

  Value Next() override {
    const uint32_t index = indexes_.Next();
    if (index < dictionary_.size()) return dictionary_[index];
    throw Invalid("{}: value {} of a dictionary of {} values", values_.where(), index,
                  dictionary_.size());
  }

 private:
  static Cursor WithoutWidth(Cursor* values) {
    values->Take(1, "the bits of an index");
    return *values;
  }

  Cursor values_;
  HybridDecoder indexes_;
  const std::vector<Value>& dictionary_;
};

class RleBoolDecoder : public ValueDecoder {
 public:
  explicit RleBoolDecoder(Cursor values) : bits_(WithoutLength(&values), 1) {}

  Value Next() override { return bits_.Next() != 0; }

 private:
  static Cursor WithoutLength(Cursor* values) {
    values->Take(sizeof(uint32_t), "the length of encoded bools");
    return *values;
  }

  HybridDecoder bits_;
};

class DeltaIntegerDecoder : public ValueDecoder {
 public:
  DeltaIntegerDecoder(Cursor values, PhysicalType type)
      : values_(values), numbers_(&values_), narrow_(type == PhysicalType::kInt32) {}

  Value Next() override {
    const int64_t value = numbers_.Next();
    return narrow_ ? int64_t{static_cast<int32_t>(value)} : value;  // 32-bit sums wrap around
  }

 private:
  Cursor values_;
  DeltaDecoder numbers_;
  bool narrow_;
};

// Lengths that lie before other data. They are decoded twice, first to find their end: a few bytes
// can stand for millions of them, which would take much memory.
class LengthDecoder {
 public:
  // Moves `values` behind the lengths.
  explicit LengthDecoder(Cursor* values) : cursor_(*values), numbers_(&cursor_) {
    DeltaDecoder all(values);
    for (uint64_t i = 0; i < all.count(); ++i) all.Next();
  }
  LengthDecoder(const LengthDecoder&) = delete;
  LengthDecoder& operator=(const LengthDecoder&) = delete;

  uint32_t Next() {
    if (read_++ == numbers_.count()) cursor_.Fail("there are fewer texts than values");
    const int64_t length = numbers_.Next();
    if (length < 0 || static_cast<uint64_t>(length) > kMaxPageBytes)
      cursor_.Fail("a text has a length that is negative or too large");
    return static_cast<uint32_t>(length);
  }

 private:
  Cursor cursor_;
  DeltaDecoder numbers_;
  uint64_t read_ = 0;
};

// DELTA_LENGTH_BYTE_ARRAY: all lengths, then all bytes.
class LengthsFirstDecoder : public ValueDecoder {
 public:
  explicit LengthsFirstDecoder(Cursor values) : values_(values), lengths_(&values_) {}

  Value Next() override { return TextOf(values_.Take(lengths_.Next(), "a text")); }

 private:
  Cursor values_;
  LengthDecoder lengths_;
};

// DELTA_BYTE_ARRAY: the lengths that each text has in common with the text before it, then the
// other bytes as DELTA_LENGTH_BYTE_ARRAY.
class PrefixDecoder : public ValueDecoder {
 public:
  explicit PrefixDecoder(Cursor values)
      : values_(values), prefixes_(&values_), suffixes_(values_) {}

  Value Next() override {
    const uint32_t prefix = prefixes_.Next();
    if (prefix > text_.size()) values_.Fail("a text shares more bytes than the last one has");
    const auto suffix = std::get<std::string_view>(suffixes_.Next());
    if (suffix.size() > kMaxPageBytes - prefix) values_.Fail("a text is too long");
    text_.resize(prefix);
    text_ += suffix;
    return std::string_view(text_);
  }

 private:
  Cursor values_;
  LengthDecoder prefixes_;
  LengthsFirstDecoder suffixes_;
  std::string text_;
};

}  // namespace

uint64_t BitsAt(std::span<const uint8_t> bytes, uint64_t bit, int width) {
  uint64_t value = 0;
  for (int have = 0; have < width;) {
    const int offset = static_cast<int>(bit % 8), count = std::min(8 - offset, width - have);
    const uint64_t part = (uint64_t{bytes[bit / 8]} >> offset) & ((1u << count) - 1);
    value |= part << have;
    have += count;
    bit += static_cast<uint64_t>(count);
  }
  return value;
}

HybridDecoder::HybridDecoder(Cursor cursor, int width) : cursor_(cursor), width_(width) {
  if (width > 32) cursor_.Fail("numbers of more than 32 bits");
}

void HybridDecoder::BeginRun() {
  const uint64_t header = cursor_.Varint("the header of a run");
  packed_run_ = (header & 1) != 0;
  left_ = header >> 1;
  if (packed_run_) {
    if (left_ > static_cast<uint64_t>(kMaxPageValues)) cursor_.Fail("a run is too long");
    packed_ = cursor_.Take(left_ * static_cast<uint64_t>(width_), "bit-packed numbers");
    left_ *= 8;
    bit_ = 0;
    return;
  }
  repeated_ = 0;
  const auto bytes = cursor_.Take(static_cast<uint64_t>(width_ + 7) / 8, "a repeated number");
  for (size_t i = 0; i < bytes.size(); ++i) repeated_ |= uint32_t{bytes[i]} << (8 * i);
}

uint32_t HybridDecoder::Next() {
  while (left_ == 0) BeginRun();
  --left_;
  if (!packed_run_) return repeated_;
  const auto value = static_cast<uint32_t>(BitsAt(packed_, bit_, width_));
  bit_ += static_cast<uint64_t>(width_);
  return value;
}

DeltaDecoder::DeltaDecoder(Cursor* cursor) : cursor_(cursor) {
  const uint64_t block = cursor->Varint("the size of a block");
  miniblocks_ = cursor->Varint("the number of miniblocks");
  count_ = cursor->Varint("the number of values");
  value_ = static_cast<uint64_t>(cursor->ZigZag("the first value"));
  // Writers have blocks of 128 values in 4 miniblocks.
  if (block > 1 << 20 || miniblocks_ == 0 || miniblocks_ > block || block % (8 * miniblocks_) != 0)
    cursor->Fail("blocks and miniblocks have impossible sizes");
  if (count_ > static_cast<uint64_t>(kMaxPageValues)) cursor->Fail("a page has too many values");
  values_per_miniblock_ = block / miniblocks_;
  miniblock_ = miniblocks_;
  in_miniblock_ = values_per_miniblock_;
}

void DeltaDecoder::BeginMiniblock() {
  if (miniblock_ == miniblocks_) {
    min_delta_ = static_cast<uint64_t>(cursor_->ZigZag("the smallest difference of a block"));
    widths_ = cursor_->Take(miniblocks_, "the widths of miniblocks");
    miniblock_ = 0;
  }
  const uint64_t width = widths_[miniblock_++];
  if (width > 64) cursor_->Fail("differences of more than 64 bits");
  packed_ = cursor_->Take(values_per_miniblock_ / 8 * width, "a miniblock");
  in_miniblock_ = 0;
}

int64_t DeltaDecoder::Next() {
  if (read_ == count_) cursor_->Fail("there are fewer encoded numbers than values");
  if (read_++ > 0) {
    if (in_miniblock_ == values_per_miniblock_) BeginMiniblock();
    const int width = widths_[miniblock_ - 1];
    const uint64_t bit = in_miniblock_++ * static_cast<uint64_t>(width);
    value_ += min_delta_ + BitsAt(packed_, bit, width);
  }
  return static_cast<int64_t>(value_);
}

std::unique_ptr<ValueDecoder> MakeValueDecoder(Encoding encoding, PhysicalType type, Cursor values,
                                               const std::vector<Value>* dictionary) {
  if (type == PhysicalType::kInt96 || type > PhysicalType::kByteArray)
    throw Invalid("{}: values of type {} are not supported", values.where(), NameOf(type));
  const bool is_text = type == PhysicalType::kByteArray;
  switch (encoding) {
    case Encoding::kPlain:
      return std::make_unique<PlainDecoder>(values, type);
    case Encoding::kPlainDictionary:
    case Encoding::kRleDictionary:
      if (dictionary == nullptr) throw Invalid("{}: there is no dictionary", values.where());
      return std::make_unique<DictionaryDecoder>(values, *dictionary);
    case Encoding::kRle:
      if (type == PhysicalType::kBoolean) return std::make_unique<RleBoolDecoder>(values);
      break;
    case Encoding::kDeltaBinaryPacked:
      if (type == PhysicalType::kInt32 || type == PhysicalType::kInt64)
        return std::make_unique<DeltaIntegerDecoder>(values, type);
      break;
    case Encoding::kDeltaLengthByteArray:
      if (is_text) return std::make_unique<LengthsFirstDecoder>(values);
      break;
    case Encoding::kDeltaByteArray:
      if (is_text) return std::make_unique<PrefixDecoder>(values);
      break;
    default:
      break;
  }
  throw Invalid("{}: the encoding {} is not supported for values of type {}", values.where(),
                NameOf(encoding), NameOf(type));
}

}  // namespace switchyard::parquet
