// The final weighted sum of combine, shared by all dispatchers. With combine by slot, its fixed
// reduction order makes results independent of ranks, modes and placements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "moe/router/router.h"
#include "moe/rows.h"
#include "moe/types.h"

namespace switchyard {

// The output for one slot of a token, in one of two forms. `row`: received, or stored in the dtype
// of sent rows. `unrounded`: a local runner output in float32, which is rounded when it is read. If
// both are null, the slot contributes nothing: it has no expert, or another rank holds its expert.
struct SlotOutput {
  SlotOutput() = default;
  SlotOutput(const std::byte* row_in) : row(row_in) {}
  SlotOutput(const float* unrounded_in) : unrounded(unrounded_in) {}

  const std::byte* row = nullptr;    // [H] of the sent dtype
  const float* unrounded = nullptr;  // [H]
};

// For every token t of `tokens`: y[t] = Σ_j weight[t, j] · output_of(t, j), summed in float32 from
// zero, in ascending order of j. Outputs are rounded to `dtype` before weighting. output_of returns
// a SlotOutput and runs on the pool's threads.
template <typename OutputOf>
void SumTopK(const TopK& topk, TokenList tokens, DType dtype, int64_t hidden,
             const OutputOf& output_of, ThreadPool& pool, float* y) {
  const auto body = [&](int64_t begin, int64_t end) {
    const int64_t first = begin * topk.k, last = end * topk.k;
    const auto output_at = [&](int64_t i) {
      return i < last ? output_of(tokens.At(i / topk.k), static_cast<int>(i % topk.k))
                      : SlotOutput();
    };
    SlotOutput next = output_at(first);
    for (int64_t i = first; i < last; ++i) {
      const SlotOutput output = std::exchange(next, output_at(i + 1));
      const int64_t token = tokens.At(i / topk.k), slot = i % topk.k;
      const float weight = topk.weights[token * topk.k + slot];
      float* sum = y + token * hidden;
      if (slot == 0) std::fill_n(sum, hidden, 0.0f);
      const NextRow ahead = next.row ? NextRow{next.row, static_cast<int64_t>(SizeOf(dtype))}
                                     : NextRow{next.unrounded, sizeof(float)};
      if (output.row) {
        AddWeightedRow(dtype, output.row, weight, hidden, sum, ahead);
      } else if (output.unrounded) {
        AddWeightedRounded(dtype, output.unrounded, weight, hidden, sum, ahead);
      }
    }
  };
  pool.RunRanges(tokens.count, kRowGrain, std::cref(body));
}

// For every token t of `tokens`: y[t] = Σ weight · row. list_rows(t, rows, weights) appends the
// terms, which are summed in that order. If it appends none, y[t] is zero. list_rows runs on the
// pool's threads.
template <typename ListRows>
void SumRows(TokenList tokens, DType dtype, int64_t hidden, const ListRows& list_rows,
             ThreadPool& pool, float* y) {
  struct Terms {
    std::vector<const std::byte*> rows;
    std::vector<float> weights;
  };
  const auto body = [&](int64_t begin, int64_t end) {
    Terms terms, next;
    const auto list = [&](int64_t i, Terms* of) {
      of->rows.clear();
      of->weights.clear();
      if (i < end) list_rows(tokens.At(i), of->rows, of->weights);
    };
    list(begin, &next);
    for (int64_t i = begin; i < end; ++i) {
      std::swap(terms, next);
      list(i + 1, &next);
      SumWeightedRows(dtype, terms.rows, terms.weights.data(), hidden, y + tokens.At(i) * hidden,
                      next.rows);
    }
  };
  pool.RunRanges(tokens.count, kRowGrain, std::cref(body));
}

}  // namespace switchyard
