// The rule for steps whose update would damage the model: values that are not finite, and spikes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::train {

struct StepRuleOptions {
  // --on-nonfinite: whether a step whose loss or gradient is not finite ends the run, or only its
  // update is skipped.
  bool skip_nonfinite = false;
  // --spike-sigmas: a step is a spike if its loss or gradient norm exceeds the mean of the recent
  // steps by more than this many standard deviations. Its update is skipped. 0: no rule.
  double spike_sigmas = 0;
  int max_skipped = 10;  // --max-skipped-steps: more skipped steps in a row end the run
};

// What the rule remembers of earlier steps; saved with checkpoints, so that a resumed run decides
// the same.
struct StepHistory {
  static constexpr size_t kWindow = 128;  // steps remembered
  static constexpr size_t kLeast = 32;    // steps needed before a step can be a spike

  std::vector<double> losses, norms;  // finite values of the last steps, oldest first
  int skipped = 0;                    // skipped steps in a row, up to the last step
};

// Why the update of a step is skipped; empty: it is applied. Adds the step to `history`. The values
// are those of the whole step, equal on all ranks, so all ranks decide the same. `not_finite`:
// GradientNorm::not_finite.
//
// Spikes as in SkipStepOptimizer of OLMo-core (OLMo 2, arXiv:2501.00656): spikes enter the history
// too, so that the rule adapts to a lasting change.
std::string ReasonToSkip(const StepRuleOptions& options, double loss, double norm,
                         const std::string& not_finite, StepHistory* history);

// "the loss is nan, the gradient of NAME is not finite"; empty if both are finite.
std::string DescribeNonfinite(double loss, const std::string& not_finite);

}  // namespace switchyard::train
