// Sliding window of expert and rank loads of the last passes, summed over ranks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "comm/device/communicator.h"
#include "eplb/types.h"
#include "moe/placement/placement.h"

namespace switchyard {

// Keeps at most `kSteps` sums over consecutive passes, each over the same number of passes. These
// sums are the steps of the history that planners receive. A sum is all-reduced when it is
// complete, so every exchange is small. Each rank has one LoadWindow, and adds the choices of its
// own tokens. Used by the rank's thread only.
class LoadWindow {
 public:
  static constexpr int kSteps = 50;
  static constexpr int kRecent = 10;  // number of steps that define the current load distribution

  // `layers`: number of MoE layers. `passes`: length of the window in passes, at least 1; rounded
  // up to a multiple of the passes per step.
  LoadWindow(int layers, int experts, int ranks, const ExpertMap& map, int64_t passes,
             Communicator& world);

  // Adds the choices of one round of a pass, as logical expert ids and as slots; −1: none. Several
  // passes may be in flight; the choices of a pass count when the pass ends.
  void Add(uint64_t pass, int layer, std::span<const int32_t> logical,
           std::span<const int32_t> physical);
  // Adds one round of a pass as counts of each expert and of each slot.
  void AddCounts(uint64_t pass, int layer, std::span<const int32_t> logical,
                 std::span<const int32_t> physical);
  // The choices of this pass do not count, because its time does not depend on the placement: a GPU
  // streams the experts of CPUs. Called by each rank that has tokens in the pass, as often as it
  // likes. Planners get the number of the other passes (LoadHistory::passes).
  void SkipPass(uint64_t pass);
  // Ends a pass. Every passes_per_step-th call completes a step: it is collective, and the sums are
  // then equal on every rank. Returns whether a step has just been completed.
  bool EndPass(uint64_t pass);
  // Discards the counts of an aborted pass.
  void AbortPass(uint64_t pass);
  // Call when experts have moved: earlier rank loads do not apply to the new placement.
  void OnMoved() {
    balanced_since_ = steps_.size();
    mixed_ = passes_ > 0;
  }
  // Call when a plan is made from the last `most` steps. The sum of these steps becomes the
  // reference distribution of ShapeChange.
  void OnPlanned(int most = kSteps);

  int64_t passes_per_step() const { return passes_per_step_; }
  // The counts of the last `most` steps.
  LoadHistory History(int most = kSteps) const;
  // Mean over steps since OnMoved and over layers of (mean / max rank load); nullopt if nothing has
  // been counted.
  std::optional<double> MeanBalancedness() const;
  // Fraction (0 to 1) of the load of the last kRecent steps that goes to other experts than in the
  // steps of the last OnPlanned. Computed as the mean over layers of the total variation distance,
  // minus the distance that sampling noise alone would cause. 0 until there are kRecent steps.
  double ShapeChange() const;

 private:
  // Token counts [layers, experts], then [layers, EP ranks], then 1 if the pass was skipped.
  using Counts = std::vector<int64_t>;
  // Returns the counts of a pass in flight. ExpertsOf and RanksOf return a layer's part of them:
  // [experts] and [EP ranks].
  Counts& CountsOf(uint64_t pass);
  int64_t* ExpertsOf(Counts& counts, int layer) const {
    return counts.data() + int64_t{layer} * experts_;
  }
  int64_t* RanksOf(Counts& counts, int layer) const {
    return counts.data() + int64_t{layers_} * experts_ + int64_t{layer} * ranks_;
  }
  // [layers, experts] rows in the last `most` steps.
  std::vector<int64_t> Sums(int most) const;

  const int layers_, experts_, ranks_;
  const ExpertMap map_;
  const int64_t passes_per_step_;
  Communicator& world_;
  int64_t passes_ = 0;       // passes counted in the current step
  Counts now_;               // counts of this rank in the current step
  std::vector<float> sums_;  // scratch: now_ summed over ranks
  // Counts of passes in flight, and memory of passes that have ended.
  std::map<uint64_t, Counts> open_, free_;
  struct Step {
    std::vector<int32_t> counts;  // [layers, experts]
    double balancedness = 1;
    double passes = 0;  // without skipped ones
  };
  std::deque<Step> steps_;  // oldest first
  size_t balanced_since_ = 0;
  bool mixed_ = false;                // experts moved during the current step
  std::vector<int64_t> planned_for_;  // [layers, experts]; empty before the first plan
  int steps_since_plan_ = 0;
};

}  // namespace switchyard
