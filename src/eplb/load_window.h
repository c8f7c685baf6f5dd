// How experts and ranks were loaded in the last passes, summed over ranks.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "comm/device/communicator.h"
#include "eplb/types.h"
#include "moe/placement.h"

namespace switchyard {

// Counts of consecutive passes in `kSteps` sums at most, each of as many passes: what planners take
// for steps. A sum is made known to all ranks when it is whole, so that no exchange is large. One
// per rank, which is told what its own tokens chose; the rank's thread.
class LoadWindow {
 public:
  static constexpr int kSteps = 50;
  static constexpr int kRecent = 10;  // steps that show the shape of the load now

  // `layers` with experts. `passes`: what the window holds, at least 1; rounded up to steps of
  // equally many.
  LoadWindow(int layers, int experts, int ranks, const ExpertMap& map, int64_t passes,
             Communicator& world);

  // The choices of one round, −1 for none: logical experts, and places.
  void Add(int layer, std::span<const int32_t> logical, std::span<const int32_t> physical);
  // Collective after every passes_per_step-th pass; sums are then equal on every rank. Whether a
  // step has just become whole.
  bool EndPass();
  // Ranks' loads so far say nothing of the placement that there is now.
  void OnMoved() {
    balanced_since_ = steps_.size();
    mixed_ = passes_ > 0;
  }
  // A plan is made for the last `most` steps: the shape that ShapeChange is measured from.
  void OnPlanned(int most = kSteps);

  // The last `most` steps.
  LoadHistory History(int most = kSteps) const;
  // Mean over steps since OnMoved and over layers of mean / max rank load; nothing where nothing
  // was counted.
  std::optional<double> MeanBalancedness() const;
  // How much of the load goes to other experts than when OnPlanned was called, 0 to 1, by the last
  // kRecent steps: the mean over layers of the total variation distance, less what chance alone
  // makes of so few rows. 0 before there are as many steps.
  double ShapeChange() const;

 private:
  // [layers, experts] rows in the last `most` steps.
  std::vector<int64_t> Sums(int most) const;

  const int layers_, experts_, ranks_;
  const ExpertMap map_;
  const int64_t passes_per_step_;
  Communicator& world_;
  int64_t passes_ = 0;        // of the step under way
  std::vector<int64_t> now_;  // its counts here: [layers, experts], then [layers, EP ranks]
  std::vector<float> sums_;   // over ranks, likewise: scratch
  struct Step {
    std::vector<int32_t> counts;  // [layers, experts]
    double balancedness = 1;
  };
  std::deque<Step> steps_;  // oldest first
  size_t balanced_since_ = 0;
  bool mixed_ = false;                // experts have moved in the step under way
  std::vector<int64_t> planned_for_;  // [layers, experts]; empty: nothing was planned yet
  int steps_since_plan_ = 0;
};

}  // namespace switchyard
