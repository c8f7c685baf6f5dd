// The masked-GEMM runner of CPU ranks.
#pragma once

#include "moe/runners/grouped_mlp.h"

namespace switchyard {

// Each expert has a fixed capacity of rows, of which the first counts[e] are valid. This is the
// layout for decode on a device whose host must not wait for counts. Each row is computed as in
// GroupedMlpRunner.
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
