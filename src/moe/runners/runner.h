// The interface of expert computation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/parallel.h"
#include "kernels/ops.h"
#include "moe/scratch.h"
#include "moe/types.h"

namespace switchyard {

// Rows grouped by expert, the output of pre-permute and input of a runner. The pointers refer to
// the dispatched rows if their type allows it, otherwise to own storage. They are valid as long as
// the dispatched rows.
struct GroupedRows {
  const float* x = nullptr;          // rows, with stride ldx
  int64_t ldx = 0;                   // in elements
  const int32_t* row_ids = nullptr;  // [num_rows] row of x for each output row; null: identity
  int64_t num_rows = 0;  // number of output rows, including padding rows of a masked layout

  // contiguous layout
  std::span<const int32_t>
      offsets;  // [E_local + 1]: expert e has rows [offsets[e], offsets[e + 1])
  // masked layout
  std::span<const int32_t> counts;  // [E_local]: the first counts[e] rows of expert e are valid
  int64_t capacity = 0;             // rows per expert; expert e begins at e · capacity

  // See ExpertRows.
  const int32_t* position = nullptr;
  const int32_t* places = nullptr;
  const int32_t* place_rows = nullptr;
  int64_t num_places = 0;

  struct Storage {
    Scratch<float> x;
    std::vector<int32_t> offsets, counts, row_ids, position, places, place_rows;
  } storage;
};

// The weights and the activation of a layer's experts.
struct ExpertBlock {
  std::span<const kernels::ExpertWeights> experts;  // this rank's experts
  kernels::Activation activation = kernels::Activation::kSwiGlu;
  float alpha = 1.702f, limit = 7.0f;  // parameters of kSwiGluClamped
};

// The range of output rows of experts [experts.begin, experts.end).
Range RowsOfExperts(const GroupedRows& rows, Range experts);

// Where a runner writes its outputs: as float32 to `y`. If `y` is null, rounded to `places` as in
// Runner::RunTo.
struct RunnerOutputs {
  float* y = nullptr;  // [rows.num_rows, hidden]
  DType dtype = DType::kF32;
  std::span<std::byte* const> places;  // [rows.num_rows]
};

// Stateless except for scratch. Owned by the backend. Used by the rank's thread only.
class Runner {
 public:
  virtual ~Runner() = default;

  virtual RunnerLayout layout() const = 0;
  // Alignment in rows of each expert's first row in the contiguous layout, for tiled device kernels
  // (DeepEP's expert_alignment). Padding rows belong to the expert before them. They may read any
  // row, and their outputs are ignored.
  virtual int expert_alignment() const { return 1; }
  virtual bool Supports(WeightFormat format) const = 0;

  // y [rows.num_rows, hidden]: the expert's output for each row, unweighted. Padding rows of a
  // masked layout are not written. A row's output must be bit-identical regardless of the other
  // rows of the call.
  virtual void Run(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden,
                   ThreadPool& pool, float* y) = 0;

  // Rounds each output of Run to `dtype` and writes it to its address in places [rows.num_rows].
  // Outputs with a null address are not written. Tiled runners override this, so that they need not
  // store all float32 outputs.
  virtual void RunTo(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden,
                     ThreadPool& pool, DType dtype, std::span<std::byte* const> places);

  // RunGateUp and RunDown replace Run and RunTo in single-batch overlap. If the runner can compute
  // the gate and up projections separately, RunGateUp computes the activated rows of all experts
  // and writes them to `middle`, which belongs to the batch. RunDown then computes the outputs of a
  // range of experts. It is called once for each expert. The default implementation computes both
  // products in RunDown.
  virtual void RunGateUp(const ExpertBlock& /*block*/, const GroupedRows& /*rows*/,
                         ThreadPool& /*pool*/, Scratch<float>* /*middle*/) {}
  virtual void RunDown(const ExpertBlock& block, const GroupedRows& rows, Range experts,
                       int64_t hidden, ThreadPool& pool, Scratch<float>* middle,
                       const RunnerOutputs& to);

 private:
  Scratch<float> outputs_;             // used by RunTo
  std::vector<int32_t> part_offsets_;  // used by RunDown
};

// Rounds `rows` [places.size(), H] and writes each to its address in `places`. Rows with a null
// address are not written.
void StoreRows(DType dtype, const float* rows, int64_t hidden, std::span<std::byte* const> places,
               ThreadPool& pool);

}  // namespace switchyard
