// Encodings of Parquet levels and values
// (https://github.com/apache/parquet-format/blob/master/Encodings.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "text/parquet/cursor.h"
#include "text/parquet/metadata.h"

namespace switchyard::parquet {

// A value of a column. Texts point into the page or the dictionary.
using Value = std::variant<int64_t, double, bool, std::string_view>;

// Bits [bit, bit + width) of `bytes`, from the lowest bit of each byte on; width at most 64.
uint64_t BitsAt(std::span<const uint8_t> bytes, uint64_t bit, int width);

// Runs of equal numbers and of bit-packed numbers, mixed ("RLE/bit-packing hybrid"): levels,
// dictionary indexes and bools. Decodes on demand, so a long run takes no memory.
class HybridDecoder {
 public:
  // `width`: bits of a number, at most 32. Throws Error kInvalid for other widths.
  HybridDecoder(Cursor cursor, int width);

  // Throws Error kInvalid if the data end too early.
  uint32_t Next();

 private:
  void BeginRun();

  Cursor cursor_;
  int width_;
  uint64_t left_ = 0;  // numbers of the present run
  bool packed_run_ = false;
  uint32_t repeated_ = 0;  // number of a run of equal numbers
  std::span<const uint8_t> packed_;
  uint64_t bit_ = 0;  // position in packed_
};

// DELTA_BINARY_PACKED: differences of consecutive integers, in blocks. Decodes on demand.
class DeltaDecoder {
 public:
  // Reads the header at the cursor. Throws Error kInvalid if it is malformed or has more than
  // kMaxPageValues numbers. `cursor` must outlive the decoder.
  explicit DeltaDecoder(Cursor* cursor);

  uint64_t count() const { return count_; }
  // Throws Error kInvalid if all numbers were read, or if the data end too early. After the last
  // number the cursor is at the bytes behind the encoded numbers.
  int64_t Next();

 private:
  void BeginMiniblock();

  Cursor* cursor_;
  uint64_t values_per_miniblock_ = 0, miniblocks_ = 0, count_ = 0;
  uint64_t read_ = 0;       // numbers returned so far
  uint64_t miniblock_ = 0;  // the next one of the block; miniblocks_: the block ends
  uint64_t value_ = 0;      // the last number; sums wrap around
  uint64_t min_delta_ = 0;
  std::span<const uint8_t> widths_, packed_;
  uint64_t in_miniblock_ = 0;  // differences that were read from packed_
};

// The values of a page, in order. Not thread-safe.
class ValueDecoder {
 public:
  virtual ~ValueDecoder() = default;
  // A text is valid until the next call, or longer. Throws Error kInvalid if the data end too
  // early.
  virtual Value Next() = 0;
};

// `values`: the values of a page; the bytes must outlive the decoder. `dictionary`: values that the
// dictionary encodings select; null: the column has none. Throws Error kInvalid that names the
// encoding or the type if Switchyard does not read it, and for malformed data.
std::unique_ptr<ValueDecoder> MakeValueDecoder(Encoding encoding, PhysicalType type, Cursor values,
                                               const std::vector<Value>* dictionary);

}  // namespace switchyard::parquet
