// The masked-GEMM runner of CPU ranks.
#pragma once

#include "moe/runners/grouped_mlp.h"

namespace switchyard {

// Each expert has a fixed capacity of rows, of which the first counts[e] are valid: the layout for
// decode on a device that must not wait for counts. Each row is computed as in GroupedMlpRunner.
class MaskedMlpRunner : public Runner {
 public:
  RunnerLayout layout() const override { return RunnerLayout::kMasked; }
  bool Supports(WeightFormat format) const override { return GroupedMlpRunner().Supports(format); }
  void Run(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden, ThreadPool& pool,
           float* y) override;
  void RunTo(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden, ThreadPool& pool,
             DType dtype, std::span<std::byte* const> places) override;
  // The activated rows are contiguous.
  void RunGateUp(const ExpertBlock& block, const GroupedRows& rows, ThreadPool& pool,
                 Scratch<float>* middle) override;
  void RunDown(const ExpertBlock& block, const GroupedRows& rows, Share experts, int64_t hidden,
               ThreadPool& pool, Scratch<float>* middle, const RunnerOutputs& to) override;

 private:
  // y [counts[e], hidden]: outputs of expert e.
  void RunExpert(const ExpertBlock& block, const GroupedRows& rows, size_t e, int64_t hidden,
                 ThreadPool& pool, float* y);

  Scratch<float> middle_;          // [capacity, I]
  Scratch<float> expert_outputs_;  // [capacity, H] of RunTo
};

}  // namespace switchyard
