// One layer while `yard` plans it: the map, and each rank's load where experts divide evenly over
// their replicas.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eplb/types.h"

namespace switchyard {

// A value; one thread. Bins are the living ranks. Even shares stand in the middle of what dispatch
// can choose from, so that a plan whose bins are even by them leaves a batch the same freedom in
// both directions.
class LayerPlan {
 public:
  // `bins` outlives the plan. `load` [experts] tokens of a step, not negative.
  LayerPlan(const std::vector<RankSlots>& bins, int physical, std::span<const double> load);

  // Starts anew from `map` [physical]; places of dead ranks and ids outside [0, experts) are empty.
  void Assign(std::span<const int32_t> map);
  // Puts `expert` (−1: nothing) at a place of `bin`.
  void Put(int bin, int place, int32_t expert);

  int bins() const { return static_cast<int>(bins_->size()); }
  int experts() const { return static_cast<int>(load_.size()); }
  const RankSlots& slots(int bin) const { return (*bins_)[bin]; }
  std::span<const int32_t> map() const { return map_; }  // [physical], −1: empty
  double load(int32_t expert) const { return load_[expert]; }
  int count(int32_t expert) const { return count_[expert]; }
  double bin_load(int bin) const { return bin_load_[bin]; }
  double mean() const { return mean_; }
  double PerReplica(int32_t expert) const { return per_replica_[expert]; }
  // [experts] tokens of each replica; of experts without one all.
  std::span<const double> per_replica() const { return per_replica_; }
  // [experts] the same, were there one replica less; infinite where there are fewer than two.
  std::span<const double> with_one_less() const { return with_one_less_; }
  int bin_of(int place) const { return bin_of_[place]; }  // −1: of a dead rank
  // The places of an expert, in no order: first_place, then next_place until −1.
  int first_place(int32_t expert) const { return first_place_[expert]; }
  int next_place(int place) const { return next_place_[place]; }
  bool Holds(int bin, int32_t expert) const;
  int Heaviest() const;

  // Exchanges experts that have no replicas between the fullest bin and others, each time the pair
  // that lowers the sum of squared bin loads most, until no pair does, the fullest is within
  // `tolerance` of the mean, or `budget` swaps are done. Returns how many were.
  int ImproveBySwaps(double tolerance, int budget);

 private:
  void Link(int32_t expert, int place);
  void Unlink(int32_t expert, int place);
  void Count(int32_t expert, int by);
  bool SwapFromHeaviest(int heavy);

  const std::vector<RankSlots>* bins_;
  std::vector<double> load_;
  std::vector<int32_t> map_;
  std::vector<int> first_place_, next_place_;        // [experts], [physical]
  std::vector<int32_t> count_;                       // [experts] replicas
  std::vector<double> per_replica_, with_one_less_;  // [experts]
  std::vector<double> solo_;      // [physical] load of experts without replicas; else infinite
  std::vector<double> bin_load_;  // [bins]
  std::vector<int> bin_of_;       // [physical] −1: of a dead rank
  double mean_ = 0;
};

// A plan from nothing: replicas one by one to the expert with the most load per replica; the
// replicas of one expert on different ranks, chosen so that ranks that share an expert are all
// connected with each other and each takes part in about as many replicated experts (what a batch
// brings too much to one rank can then flow off to all others, over one expert after another);
// then single experts, heaviest first, to the lightest rank with a place free.
void StartFromNothing(LayerPlan* plan);

// A plan from the one there is, by few changes: experts without a place get one, empty places are
// filled, and replicas move from cold experts to those whose load per replica is more than
// 1 + `slack` times what the cold one's would be. Swaps are left to ImproveBySwaps.
void RepairPlan(double slack, int budget, LayerPlan* plan);

}  // namespace switchyard
