// The runner of CPU ranks.
#pragma once

#include "moe/runner.h"

namespace switchyard {

// One contiguous grouped GEMM with the activation fused between its two products
// (kernels::GroupedMlp), which reads every weight format in place.
class GroupedMlpRunner : public Runner {
 public:
  RunnerLayout layout() const override { return RunnerLayout::kContiguous; }
  bool Takes(WeightFormat format) const override;
  void Run(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden, ThreadPool& pool,
           float* y) override;

 private:
  Scratch<float> middle_;  // [rows, I]
};

}  // namespace switchyard
