// The runners of CPU ranks.
#pragma once

#include "moe/runners/runner.h"

namespace switchyard {

// Computes the experts with one contiguous grouped GEMM for gate and up, and one for down; the
// activation is fused between the two (kernels::GroupedMlp). Reads every weight format in place.
class GroupedMlpRunner : public Runner {
 public:
  // Rows per tile of float32 outputs in RunTo. Tiles are large enough that weights are seldom read
  // again for the next tile, and small enough that rounding reads the outputs from cache.
  static constexpr int64_t kTileRows = 1024;

  RunnerLayout layout() const override { return RunnerLayout::kContiguous; }
  bool Supports(WeightFormat format) const override;
  void Run(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden, ThreadPool& pool,
           float* y) override;
  void RunTo(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden, ThreadPool& pool,
             DType dtype, std::span<std::byte* const> places) override;
  void RunGateUp(const ExpertBlock& block, const GroupedRows& rows, ThreadPool& pool,
                 Scratch<float>* middle) override;
  void RunDown(const ExpertBlock& block, const GroupedRows& rows, Range experts, int64_t hidden,
               ThreadPool& pool, Scratch<float>* middle, const RunnerOutputs& to) override;

 private:
  // Offsets of the experts in rows [begin, begin + count), stored in tile_offsets_.
  std::span<const int32_t> TileOffsets(const GroupedRows& rows, int64_t begin, int64_t count);

  Scratch<float> middle_;  // [rows, I]
  Scratch<float> tile_;    // [tile rows, H]
  std::vector<int32_t> tile_offsets_;
};

// Computes the experts with masked GEMMs. Each expert has a fixed capacity of rows, of which the
// first counts[e] are valid. This is the layout for decode on a device whose host must not wait for
// counts. Each row is computed as in GroupedMlpRunner.
class MaskedMlpRunner : public Runner {
 public:
  RunnerLayout layout() const override { return RunnerLayout::kMasked; }
  bool Supports(WeightFormat format) const override { return GroupedMlpRunner().Supports(format); }
  void Run(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden, ThreadPool& pool,
           float* y) override;
  void RunTo(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden, ThreadPool& pool,
             DType dtype, std::span<std::byte* const> places) override;
  // Stores the activated rows contiguously in `middle`, without padding.
  void RunGateUp(const ExpertBlock& block, const GroupedRows& rows, ThreadPool& pool,
                 Scratch<float>* middle) override;
  void RunDown(const ExpertBlock& block, const GroupedRows& rows, Range experts, int64_t hidden,
               ThreadPool& pool, Scratch<float>* middle, const RunnerOutputs& to) override;

 private:
  // Computes y [counts[e], hidden], the outputs of expert e.
  void RunExpert(const ExpertBlock& block, const GroupedRows& rows, size_t e, int64_t hidden,
                 ThreadPool& pool, float* y);

  Scratch<float> middle_;          // [capacity, I]
  Scratch<float> expert_outputs_;  // [capacity, H] used by RunTo
};

}  // namespace switchyard
