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

// Rows by expert, what pre-permute hands to a runner. Views of the dispatched rows where their type
// allows it, of own storage where not; valid as long as those.
struct GroupedRows {
  const float* x = nullptr;          // row stride ldx
  int64_t ldx = 0;                   // elements
  const int32_t* row_ids = nullptr;  // [num_rows] row of x for each output row; null: the same
  int64_t num_rows = 0;              // of the output, with the gaps of a masked layout

  // contiguous
  std::span<const int32_t>
      offsets;  // [E_local + 1]: expert e has rows [offsets[e], offsets[e + 1])
  // masked
  std::span<const int32_t> counts;  // [E_local]: expert e has the first counts[e] rows of its own
  int64_t capacity = 0;             // rows of each expert, those from e · capacity

  // As in ExpertRows.
  const int32_t* position = nullptr;
  const int32_t* places = nullptr;
  const int32_t* place_rows = nullptr;
  int64_t num_places = 0;

  struct Storage {
    Scratch<float> x;
    std::vector<int32_t> offsets, counts, row_ids, position, places, place_rows;
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
  // contiguous: offsets are to be multiples of this, as tiles of a device want them (DeepEP's
  // expert_alignment). Rows that fill up belong to the expert, are read from anywhere, and their
  // outputs are not looked at.
  virtual int expert_alignment() const { return 1; }
  virtual bool Takes(WeightFormat format) const = 0;

  // y [rows.num_rows, hidden]: the expert's output for each row, unweighted; rows in gaps are left
  // alone. A row's output may not depend on which rows share the call, in any bit.
  virtual void Run(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden,
                   ThreadPool& pool, float* y) = 0;

  // The same with each output rounded to `dtype` and left at places[r] [rows.num_rows]; those with
  // null nowhere. A runner that does so tile by tile spares memory the float32 outputs.
  virtual void RunTo(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden,
                     ThreadPool& pool, DType dtype, std::span<std::byte* const> places);

 private:
  Scratch<float> outputs_;  // of RunTo
};

// Rounds rows [places.size(), H] to where they belong; null: nowhere.
void StoreRows(DType dtype, const float* rows, int64_t hidden, std::span<std::byte* const> places,
               ThreadPool& pool);

}  // namespace switchyard
