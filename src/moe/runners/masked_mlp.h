// A runner of CPU ranks for fixed places.
#pragma once

#include "moe/runners/grouped_mlp.h"

namespace switchyard {

// Each expert's rows have places of their own, of which counts say how many are in use: what decode
// on a device that is not to wait for counts computes with. The same arithmetic, row by row, as
// GroupedMlpRunner.
class MaskedMlpRunner : public Runner {
 public:
  RunnerLayout layout() const override { return RunnerLayout::kMasked; }
  bool Takes(WeightFormat format) const override { return GroupedMlpRunner().Takes(format); }
  void Run(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden, ThreadPool& pool,
           float* y) override;
  void RunTo(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden, ThreadPool& pool,
             DType dtype, std::span<std::byte* const> places) override;

 private:
  // y [counts[e], hidden]: of expert e.
  void RunExpert(const ExpertBlock& block, const GroupedRows& rows, size_t e, int64_t hidden,
                 ThreadPool& pool, float* y);

  Scratch<float> middle_;          // [capacity, I]
  Scratch<float> expert_outputs_;  // [capacity, H] of RunTo
};

}  // namespace switchyard
