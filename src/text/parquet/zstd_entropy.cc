#include "text/parquet/zstd_entropy.h"

#include <algorithm>
#include <array>
#include <bit>

#include "text/parquet/encodings.h"

namespace switchyard::parquet {
namespace {

constexpr int kMaxHuffmanBits = 11;

int HighestBit(uint64_t value) { return static_cast<int>(std::bit_width(value)) - 1; }

// Two states in turn, until the bits are used up.
std::vector<uint8_t> WeightsOf(Cursor* in) {
  const FseTable table = ReadFseTable(in, 6, 256);
  BackwardBits bits(in->Take(in->left(), "a Huffman table"), *in);
  std::array<size_t, 2> states{};
  for (size_t& state : states) state = table.Begin(&bits);
  std::vector<uint8_t> weights;
  for (size_t turn = 0;; turn ^= 1) {
    if (weights.size() > 254) in->Fail("a Huffman table has too many symbols");
    weights.push_back(table.Symbol(states[turn]));
    states[turn] = table.Next(states[turn], &bits);
    if (bits.left() >= 0) continue;
    weights.push_back(table.Symbol(states[turn ^ 1]));
    return weights;
  }
}

}  // namespace

BackwardBits::BackwardBits(std::span<const uint8_t> data, const Cursor& in) : data_(data), in_(in) {
  if (data.empty() || data.back() == 0) in.Fail("a bit stream does not end with a bit");
  left_ = static_cast<int64_t>(data.size()) * 8 - 8 + HighestBit(data.back());
}

uint64_t BackwardBits::Read(int count) {
  left_ -= count;
  if (left_ >= 0) return BitsAt(data_, static_cast<uint64_t>(left_), count);
  const int64_t have = count + left_;
  return have <= 0 ? 0 : BitsAt(data_, 0, static_cast<int>(have)) << -left_;
}

void BackwardBits::CheckEnd(int64_t left) const {
  if (left_ != left) in_.Fail("a bit stream has another length than its symbols");
}

FseTable::FseTable(std::span<const int16_t> distribution, int log, const Cursor& in)
    : log_(log), states_(size_t{1} << log) {
  const size_t size = states_.size();
  size_t high = size;
  std::array<uint32_t, 256> next{};
  for (size_t symbol = 0; symbol < distribution.size(); ++symbol) {
    if (distribution[symbol] != -1) continue;
    states_[--high].symbol = static_cast<uint8_t>(symbol);
    next[symbol] = 1;
  }
  const size_t step = (size >> 1) + (size >> 3) + 3;
  size_t at = 0;
  for (size_t symbol = 0; symbol < distribution.size(); ++symbol) {
    if (distribution[symbol] <= 0) continue;
    next[symbol] = static_cast<uint32_t>(distribution[symbol]);
    for (int i = 0; i < distribution[symbol]; ++i) {
      states_[at].symbol = static_cast<uint8_t>(symbol);
      do at = (at + step) % size;
      while (at >= high);
    }
  }
  if (at != 0) in.Fail("an entropy table is malformed");
  for (State& state : states_) {
    const uint32_t number = next[state.symbol]++;
    state.bits = static_cast<uint8_t>(log - HighestBit(number));
    state.base = static_cast<uint16_t>((number << state.bits) - size);
  }
}

FseTable ReadFseTable(Cursor* in, int max_log, size_t symbols) {
  Cursor ahead = *in;
  const auto data = ahead.Take(ahead.left(), "a table");
  uint64_t bit = 0;
  const auto peek = [&](int count) {  // zeros follow the data
    const uint64_t end = data.size() * 8;
    if (bit >= end) return uint64_t{0};
    return BitsAt(data, bit, static_cast<int>(std::min<uint64_t>(end - bit, count)));
  };
  const auto read = [&](int count) {
    const uint64_t value = peek(count);
    bit += static_cast<uint64_t>(count);
    return value;
  };
  const int log = static_cast<int>(read(4)) + 5;
  if (log > max_log) in->Fail("an entropy table is too large");
  int64_t left = int64_t{1} << log;
  std::vector<int16_t> distribution;
  while (left > 0 && distribution.size() < symbols) {
    const int bits = HighestBit(static_cast<uint64_t>(left + 1)) + 1;
    auto value = static_cast<int64_t>(peek(bits));
    // Small values take one bit less.
    const int64_t low = (int64_t{1} << (bits - 1)) - 1;
    const int64_t threshold = (int64_t{1} << bits) - 1 - (left + 1);
    if ((value & low) < threshold) {
      value &= low;
      bit += static_cast<uint64_t>(bits) - 1;
    } else {
      if (value > low) value -= threshold;
      bit += static_cast<uint64_t>(bits);
    }
    const auto probability = static_cast<int16_t>(value - 1);
    left -= probability < 0 ? 1 : probability;
    distribution.push_back(probability);
    if (probability != 0) continue;
    for (uint64_t repeat = 3; repeat == 3 && distribution.size() < symbols;) {
      repeat = read(2);
      distribution.insert(distribution.end(), repeat, 0);
    }
  }
  if (left != 0 || distribution.size() > symbols) in->Fail("an entropy table is malformed");
  in->Take((bit + 7) / 8, "an entropy table");
  return FseTable(distribution, log, *in);
}

void ZstdHuffman::Read(Cursor* in) {
  std::vector<uint8_t> weights;
  const auto header = in->Read<uint8_t>("a Huffman table");
  if (header >= 128) {
    const size_t count = header - 127u;
    const auto data = in->Take((count + 1) / 2, "a Huffman table");
    for (size_t i = 0; i < count; ++i)
      weights.push_back(i % 2 == 0 ? data[i / 2] >> 4 : data[i / 2] & 15);
  } else {
    const uint64_t at = in->offset();
    Cursor table(in->Take(header, "a Huffman table"), in->where(), at);
    weights = WeightsOf(&table);
  }
  uint64_t sum = 0;
  for (const uint8_t weight : weights) {
    if (weight > kMaxHuffmanBits) in->Fail("a Huffman table is malformed");
    sum += (uint64_t{1} << weight) >> 1;
  }
  // The weight of the last symbol completes a power of two.
  bits_ = HighestBit(sum) + 1;
  const uint64_t rest = (uint64_t{1} << bits_) - sum;
  if (sum == 0 || bits_ > kMaxHuffmanBits || !std::has_single_bit(rest))
    in->Fail("a Huffman table is malformed");
  weights.push_back(static_cast<uint8_t>(HighestBit(rest) + 1));
  if (weights.size() > 256) in->Fail("a Huffman table has too many symbols");
  entries_.clear();
  for (int weight = 1; weight <= bits_; ++weight) {
    for (size_t symbol = 0; symbol < weights.size(); ++symbol) {
      if (weights[symbol] != weight) continue;
      const Entry entry{static_cast<uint8_t>(symbol), static_cast<uint8_t>(bits_ + 1 - weight)};
      entries_.insert(entries_.end(), size_t{1} << (weight - 1), entry);
    }
  }
  if (entries_.size() != size_t{1} << bits_) in->Fail("a Huffman table is malformed");
}

void ZstdHuffman::Decode(std::span<const uint8_t> data, uint64_t count, const Cursor& in,
                         std::vector<uint8_t>* out) const {
  BackwardBits bits(data, in);
  uint64_t state = bits.Read(bits_);
  for (uint64_t i = 0; i < count; ++i) {
    const Entry entry = entries_[state];
    out->push_back(entry.symbol);
    state = ((state << entry.bits) | bits.Read(entry.bits)) & (entries_.size() - 1);
  }
  bits.CheckEnd(-bits_);
}

}  // namespace switchyard::parquet
