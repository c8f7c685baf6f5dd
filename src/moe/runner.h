// The interface that computes experts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/parallel.h"
#include "kernels/ops.h"
#include "moe/scratch.h"
#include "moe/types.h"

namespace switchyard {

// Rows sorted by expert, what pre-permute hands to a runner. Views of the dispatched rows where
// their type allows it, of own storage where not; valid as long as those.
struct GroupedRows {
  const float* x = nullptr;           // row stride ldx
  int64_t ldx = 0;                    // elements
  const int32_t* row_ids = nullptr;   // [num_rows] row of x for each output row; null: the same
  std::span<const int32_t> offsets;   // [E_local + 1]
  const int32_t* position = nullptr;  // these two as in ExpertRows
  const int32_t* places = nullptr;
  int64_t num_rows() const { return offsets.empty() ? 0 : offsets.back(); }

  struct Storage {
    Scratch<float> x;
    std::vector<int32_t> offsets, row_ids, position, places;
  } storage;
};

// What the experts of a layer are and do.
struct ExpertBlock {
  std::span<const kernels::ExpertWeights> experts;  // this rank's
  kernels::Activation activation = kernels::Activation::kSwiGlu;
  float alpha = 1.702f, limit = 7.0f;  // of kSwiGluClamped
};

// Stateless but for scratch. Owned by the runtime, used by the rank's thread only.
class Runner {
 public:
  virtual ~Runner() = default;

  virtual RunnerLayout layout() const = 0;
  virtual bool Takes(WeightFormat format) const = 0;

  // y [rows.num_rows(), hidden]: the expert's output for each row, unweighted. A row's output may
  // not depend on which rows share the call, in any bit.
  virtual void Run(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden,
                   ThreadPool& pool, float* y) = 0;
};

}  // namespace switchyard
