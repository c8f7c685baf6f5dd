// Tokens of a batch divided over the replicas of their experts so that the fullest rank is as empty
// as can be.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eplb/division_forest.h"

namespace switchyard {

// One layer's placement, prepared: which bins (ranks) each expert has replicas on. Load divides
// freely over an expert's replicas. Each thread has its own; nothing is allocated after Reset.
//
// Each replicated expert in turn pours its load over its bins as water finds its level, all others
// being left where they are; that is repeated, forth and back. It minimises the sum of squared bin
// loads, which is convex and whose constraints are separate for each expert, so that the turns
// approach its one minimum (block coordinate descent; P. Tseng, 2001); and that division also has
// the least maximum, since a fullest bin that could be relieved would lower the squares. So the
// exact optimum (exact_balance.h) is where this ends; `sweeps` says how near it gets.
class WaterFilling {
 public:
  struct Replica {
    int32_t bin = 0;
    int32_t place = 0;  // of the caller's
  };

  // `bin_of` [places]: −1 where the place is not used; the places of a bin are neighbours.
  // `expert_of` [places]. `offset`, not negative: where those who each divide a batch of their own
  // begin to look among an expert's replicas that are equally good; else all would take the first.
  void Reset(int num_bins, int num_experts, std::span<const int32_t> bin_of,
             std::span<const int32_t> expert_of, int offset = 0);

  // Loads of the fullest bin. `load` [experts], not negative. Stops before `sweeps` where no bin is
  // over the mean by more than `tolerance` of it.
  double Fill(std::span<const double> load, int sweeps, double tolerance = 0);

  std::span<const double> bin_loads() const { return bins_; }  // [bins] after Fill
  double mean() const { return mean_; }                        // of the bins
  // Of the last Fill, in whole tokens where the loads were whole: [places], 0 for unused ones. Of
  // all divisions that leave the bins so full it is one that divides few experts
  // (division_forest.h). What is left of rounding down goes to the emptier bins of those that
  // have a share.
  void Shares(std::span<int32_t> shares);

 private:
  struct Replicated {
    int32_t expert, begin, end;  // of replicas_
  };
  void Pour(const Replicated& group, double load);
  void PrepareForest();

  std::vector<Replica> replicas_;  // of replicated experts, grouped
  std::vector<Replicated> replicated_;
  std::vector<Replica> single_;                    // [experts]; bin −1: replicated, or nowhere
  std::vector<double> poured_;                     // [replicas_]
  std::vector<double> bins_;                       // [bins]
  std::vector<int32_t> order_, begin_, last_bin_;  // scratch
  std::vector<double> load_;                       // [experts] of the last Fill
  std::vector<int32_t> taking_;                    // scratch: replicas with a share
  DivisionForest forest_;                          // made by the first Shares after Reset
  bool forest_is_ready_ = false;
  double mean_ = 0;
  int offset_ = 0;
};

}  // namespace switchyard
