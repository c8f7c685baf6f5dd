// Rows of the tokens of several ranks, each with a part of the experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "train/device/linear.h"

namespace switchyard::train {

// The tokens of a micro-batch on the ranks of DeviceGroups::experts, which all call the same
// functions in the same order. Every rank gets the rows of all tokens. That sends each row once to
// each rank, whatever the number of its experts there, and the host knows all sizes. Gather and Sum
// only start (DeviceRanks::Fork): results are valid, and operands may be released, after Join.
template <typename C>
class RowExchange {
 public:
  // Borrows the context, and DeviceRows::of_ranks.
  RowExchange(const DeviceContext<C>& on, const DeviceRows& rows)
      : on_(on),
        of_ranks_(rows.of_ranks),
        rows_(of_ranks_.empty() ? rows.m
                                : std::reduce(of_ranks_.begin(), of_ranks_.end(), int64_t{0})) {}

  int64_t rows() const { return rows_; }  // of all ranks
  // Whether there are other ranks, and rows.
  bool needed() const { return !of_ranks_.empty() && rows_ > 0; }

  // Returns the rows [rows(), width] of all ranks, in rank order. `mine` [m, width].
  template <typename E>
  DeviceArray<E> Gather(const E* mine, int64_t width) const {
    auto all = on_.template Array<E>(rows_ * width);
    on_.ranks.Fork();  // after the allocation, which may clear the memory
    const size_t bytes = static_cast<size_t>(width) * sizeof(E);
    on_.ranks.groups().experts->AllGatherV(mine, all.data(), Counts(bytes));
    return all;
  }
  // mine [m, width] = this rank's rows of the sum of all ranks' `parts` [rows(), width].
  void Sum(const float* parts, int64_t width, float* mine) const {
    on_.ranks.Fork();
    on_.ranks.groups().experts->ReduceScatterV(parts, mine, Counts(static_cast<size_t>(width)));
  }

 private:
  // `units` for each row of a rank.
  std::vector<size_t> Counts(size_t units) const {
    std::vector<size_t> counts;
    for (const int64_t rows : of_ranks_) counts.push_back(static_cast<size_t>(rows) * units);
    return counts;
  }

  const DeviceContext<C>& on_;
  const std::span<const int64_t> of_ranks_;
  const int64_t rows_;
};

// Rows of this rank's tokens on their way to the ranks of DeviceGroups::experts. With
// DeviceOptions::fp8 they travel as e4m3 codes, with a scale for each 128 elements. Then a rank
// alone rounds its rows, too, so that all layouts compute the same.
template <typename C>
class DispatchedRows {
 public:
  // Starts. mine [m, width].
  DispatchedRows(const DeviceContext<C>& on, const RowExchange<C>& exchange, const C* mine,
                 int64_t m, int64_t width)
      : on_(on), rows_(exchange.rows()), width_(width) {
    if (!on.options.fp8) {
      if (exchange.needed()) all_ = exchange.Gather(mine, width);
      return;
    }
    my_codes_ = on.template Array<uint8_t>(m * width);
    my_scales_ = on.template Array<float>(m * width / kFp8Block);
    if (m > 0) on.ops.QuantizeRows(mine, m, width, my_codes_.data(), my_scales_.data());
    if (!exchange.needed()) return;
    codes_ = exchange.Gather(my_codes_.data(), width);
    scales_ = exchange.Gather(my_scales_.data(), width / kFp8Block);
  }

  // The rows [rows(), width] of all ranks. Empty if they are those of this rank, not rounded. Call
  // it once, after Join.
  DeviceArray<C> Take() {
    if (!on_.options.fp8) return std::move(all_);
    all_ = on_.template Array<C>(rows_ * width_);
    const bool mine = codes_.empty();
    on_.ops.DecodeRows(mine ? my_codes_.data() : codes_.data(),
                       mine ? my_scales_.data() : scales_.data(), rows_, width_, all_.data());
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
