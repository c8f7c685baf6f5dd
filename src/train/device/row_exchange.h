// Rows of the tokens of several ranks, each with a part of the experts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "core/range.h"
#include "train/device/linear.h"

namespace switchyard::train {

// A rank's rows of a micro-batch in two parts: the sums of outputs of the first part are sent while
// those of the second part are computed, and the second part is sent while the next layer reads the
// first one. So the first part is the smaller one. With few rows it is empty, because two small
// messages take longer than one.
constexpr int kRowParts = 2;
inline Range RowPart(int part, int64_t rows) {
  constexpr int64_t kTile = 128;  // rows of a tile of products
  int64_t first = rows * 3 / 8;
  if (first < kTile) first = 0;
  if (first >= 4 * kTile) first = first / kTile * kTile;
  return part == 0 ? Range{0, first} : Range{first, rows};
}

// Outputs of a layer whose sums over ranks have started. Without ranks that divide the experts,
// `started` stays false.
struct DeviceRowSums {
  bool started = false;
  // [m, width] The first part is valid after DeviceRanks::JoinMarked, all rows after Join.
  DeviceArray<float> sums;
  std::array<DeviceArray<float>, kRowParts> operands;  // released after Join only
};

// The tokens of a micro-batch on the ranks of DeviceGroups::experts, which all call the same
// functions in the same order. Every rank gets the rows of all tokens. That sends each row once to
// each rank, whatever the number of its experts there, and the host knows all sizes. Gather and the
// sums only start (DeviceRanks::Fork): results are valid, and operands may be released, after Join.
template <typename C>
class RowExchange {
 public:
  // Borrows the context, and DeviceRows::of_ranks. `layer`: of the messages in profiles.
  RowExchange(const DeviceContext<C>& on, const DeviceRows& rows, int layer)
      : on_(on),
        of_ranks_(rows.of_ranks),
        rows_(of_ranks_.empty() ? rows.m
                                : std::reduce(of_ranks_.begin(), of_ranks_.end(), int64_t{0})),
        layer_(layer) {}

  int64_t rows() const { return rows_; }  // of all ranks
  // Whether there are other ranks, and rows.
  bool needed() const { return !of_ranks_.empty() && rows_ > 0; }

  // Returns the rows [rows(), width] of all ranks, in rank order. `mine` [m, width]. `name`: of the
  // message in profiles.
  template <typename E>
  DeviceArray<E> Gather(const char* name, const E* mine, int64_t width) const {
    auto all = on_.template Array<E>(rows_ * width);
    on_.ranks.Fork();  // after the allocation, which may clear the memory
    const profile::Span message = on_.ranks.Message(name, all.bytes(), layer_);
    const size_t bytes = static_cast<size_t>(width) * sizeof(E);
    on_.ranks.groups().experts->AllGatherV(mine, all.data(), Counts(Rows(), bytes));
    return all;
  }
  // mine [m, width] = this rank's rows of the sum of all ranks' `parts` [rows(), width].
  void Sum(const char* name, const float* parts, int64_t width, float* mine) const {
    Sum(name, Rows(), parts, width, mine);
  }
  // The same in parts of the rows. add(rows, out) computes this rank's part of the outputs of some
  // tokens [rows.begin, rows.end) of all ranks, and enqueues it before it returns.
  template <typename Add>
  void SumInParts(const char* name, int64_t width, const Add& add, DeviceRowSums* sums) const {
    const auto self = static_cast<size_t>(on_.ranks.groups().experts->rank());
    const int64_t mine = of_ranks_[self];
    sums->started = true;
    sums->sums = on_.template Array<float>(mine * width);
    for (int part = 0; part < kRowParts; ++part) {
      const std::vector<Range> ranges = Rows(part);
      int64_t count = 0;
      for (const Range& rows : ranges) count += rows.size();
      DeviceArray<float>& operand = sums->operands[static_cast<size_t>(part)];
      operand = on_.template Array<float>(count * width);
      float* at = operand.data();
      for (const Range& rows : ranges) {
        if (rows.size() == 0) continue;
        add(rows, at);
        at += rows.size() * width;
      }
      if (count > 0) {  // the same on all ranks
        Sum(name, ranges, operand.data(), width,
            sums->sums.data() + RowPart(part, mine).begin * width);
      }
      if (part == 0) on_.ranks.Mark();
    }
  }

 private:
  // The rows of each rank among those of all ranks; `part`: those of RowPart.
  std::vector<Range> Rows() const {
    std::vector<Range> ranges;
    int64_t begin = 0;
    for (const int64_t rows : of_ranks_) {
      ranges.push_back({begin, begin + rows});
      begin += rows;
    }
    return ranges;
  }
  std::vector<Range> Rows(int part) const {
    std::vector<Range> ranges = Rows();
    for (Range& rows : ranges) {
      const Range some = RowPart(part, rows.size());
      rows = {rows.begin + some.begin, rows.begin + some.end};
    }
    return ranges;
  }
  // `units` for each row of a rank.
  static std::vector<size_t> Counts(std::span<const Range> ranges, size_t units) {
    std::vector<size_t> counts;
    for (const Range& rows : ranges) counts.push_back(static_cast<size_t>(rows.size()) * units);
    return counts;
  }
  void Sum(const char* name, std::span<const Range> ranges, const float* parts, int64_t width,
           float* mine) const {
    const std::vector<size_t> counts = Counts(ranges, static_cast<size_t>(width));
    const size_t floats = std::reduce(counts.begin(), counts.end());
    on_.ranks.Fork();
    const profile::Span message =
        on_.ranks.Message(name, static_cast<int64_t>(floats * sizeof(float)), layer_);
    on_.ranks.groups().experts->ReduceScatterV(parts, mine, counts);
  }

  const DeviceContext<C>& on_;
  const std::span<const int64_t> of_ranks_;
  const int64_t rows_;
  const int layer_;
};

// Rows of this rank's tokens on their way to the ranks of DeviceGroups::experts. With
// DeviceOptions::fp8 they travel as e4m3 codes, with a scale for each 128 elements. Then a rank
// alone rounds its rows, too, so that all layouts compute the same.
template <typename C>
class DispatchedRows {
 public:
  // Starts. mine [m, width]. `name`: of the messages in profiles.
  DispatchedRows(const DeviceContext<C>& on, const RowExchange<C>& exchange, const char* name,
                 const C* mine, int64_t m, int64_t width)
      : on_(on), rows_(exchange.rows()), width_(width) {
    if (!on.options.fp8) {
      if (exchange.needed()) all_ = exchange.Gather(name, mine, width);
      return;
    }
    my_codes_ = on.template Array<uint8_t>(m * width);
    my_scales_ = on.template Array<float>(m * width / kFp8Block);
    if (m > 0) on.ops.QuantizeRows(mine, m, width, my_codes_.data(), my_scales_.data());
    if (!exchange.needed()) return;
    codes_ = exchange.Gather(name, my_codes_.data(), width);
    scales_ = exchange.Gather(name, my_scales_.data(), width / kFp8Block);
  }

  // The rows [rows(), width] of all ranks. Empty if they are those of this rank, not rounded. Call
  // it once, after Join.
  DeviceArray<C> Take() {
    if (!on_.options.fp8) return std::move(all_);
    all_ = on_.template Array<C>(rows_ * width_);
    const bool mine = codes_.empty();
    on_.ops.DecodeRows(mine ? my_codes_.data() : codes_.data(),
                       mine ? my_scales_.data() : scales_.data(), rows_, width_, all_.data());
    // Later arrays may use their memory.
    my_codes_ = {};
    codes_ = {};
    my_scales_ = {};
    scales_ = {};
    return std::move(all_);
  }

 private:
  const DeviceContext<C>& on_;
  const int64_t rows_, width_;
  DeviceArray<C> all_;
  DeviceArray<uint8_t> my_codes_, codes_;
  DeviceArray<float> my_scales_, scales_;
};

}  // namespace switchyard::train
