// Entropy codes of Zstandard (RFC 8878): bit streams, FSE and Huffman tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "text/parquet/cursor.h"

namespace switchyard::parquet {

// All functions throw Error kInvalid of the cursor that they are given for malformed data.

// Bits that are read from the end of the data to the front. The highest bit of the last byte marks
// the end. Zeros precede the data. Data and cursor must outlive it.
class BackwardBits {
 public:
  BackwardBits(std::span<const uint8_t> data, const Cursor& in);

  uint64_t Read(int count);               // at most 32 bits
  int64_t left() const { return left_; }  // negative: bits before the data were read
  void CheckEnd(int64_t left) const;      // throws unless left() is `left`

 private:
  std::span<const uint8_t> data_;
  const Cursor& in_;
  int64_t left_ = 0;
};

// Decoding table of a finite-state entropy (FSE) code. A state has a symbol, and bits select the
// next state. Immutable.
class FseTable {
 public:
  FseTable() = default;  // empty
  // A table of 2^log states. `distribution`: states of each symbol, which add up to 2^log; −1: one
  // state that is used less often than one in 2^log.
  FseTable(std::span<const int16_t> distribution, int log, const Cursor& in);
  // A table that has only one symbol.
  explicit FseTable(uint8_t symbol) : states_{State{.symbol = symbol}} {}

  bool empty() const { return states_.empty(); }
  size_t Begin(BackwardBits* bits) const { return bits->Read(log_); }
  uint8_t Symbol(size_t state) const { return states_[state].symbol; }
  size_t Next(size_t state, BackwardBits* bits) const {
    return states_[state].base + bits->Read(states_[state].bits);
  }

 private:
  struct State {
    uint8_t symbol = 0, bits = 0;
    uint16_t base = 0;
  };
  int log_ = 0;
  std::vector<State> states_;
};

// Reads the description of a table of at most `symbols` symbols and 2^max_log states (RFC 8878,
// section 4.1.1).
FseTable ReadFseTable(Cursor* in, int max_log, size_t symbols);

// Decoding table of a Huffman code of at most 11 bits.
class ZstdHuffman {
 public:
  bool empty() const { return entries_.empty(); }
  void Read(Cursor* in);  // the description (RFC 8878, section 4.2.1)
  // Appends the `count` symbols of a stream to `out`.
  void Decode(std::span<const uint8_t> data, uint64_t count, const Cursor& in,
              std::vector<uint8_t>* out) const;

 private:
  struct Entry {
    uint8_t symbol = 0, bits = 0;
  };

  int bits_ = 0;
  std::vector<Entry> entries_;  // [2^bits_], by the next bits_ bits
};

}  // namespace switchyard::parquet
