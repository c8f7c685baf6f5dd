// The plan of a layer: replicas of experts on slots of ranks, from a forecast of the loads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eplb/types.h"

namespace switchyard {

// State of one layer in the `yard` planner: the expert map, and the load of each rank if experts
// divide evenly over their replicas.

// A value type; single-threaded. Bins are the living ranks. The plan divides an expert's load
// evenly over its replicas. Dispatch may later choose other shares for a batch, and even shares are
// in the middle of the possible range. So if even shares balance the bins, dispatch can correct a
// batch equally far in both directions.
class LayerPlan {
 public:
  // `bins` must outlive the plan. `load` [experts] tokens per step, not negative.
  LayerPlan(const std::vector<RankSlots>& bins, int physical, std::span<const double> load);

  // Resets to `map` [physical]. Slots of dead ranks and ids outside [0, experts) become empty.
  void Assign(std::span<const int32_t> map);
  // Puts `expert` (−1: none) into slot `place` of `bin`.
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
  // [experts] load per slot, in tokens; the whole load if the expert has no slot.
  std::span<const double> per_replica() const { return per_replica_; }
  // [experts] load per slot, in tokens, if the expert had one slot less; infinite for experts with
  // fewer than two slots.
  std::span<const double> with_one_less() const { return with_one_less_; }
  int bin_of(int place) const { return bin_of_[place]; }  // −1: slot of a dead rank
  // Linked list of the slots of an expert, in no particular order: begins at first_slot, continues
  // with next_slot, ends at −1.
  int first_slot(int32_t expert) const { return first_slot_[expert]; }
  int next_slot(int place) const { return next_slot_[place]; }
  bool Holds(int bin, int32_t expert) const;
  int Heaviest() const;

  // Swaps experts that have a single slot between the most loaded bin and other bins. Each swap is
  // the one that reduces the sum of squared bin loads most. Stops when no swap reduces the sum,
  // when the most loaded bin is within the fraction `tolerance` of the mean, or after `budget`
  // swaps. Returns the number of swaps.
  int ImproveBySwaps(double tolerance, int budget);

 private:
  void Link(int32_t expert, int place);
  void Unlink(int32_t expert, int place);
  void Count(int32_t expert, int by);
  bool SwapFromHeaviest(int heavy);

  const std::vector<RankSlots>* bins_;
  std::vector<double> load_;
  std::vector<int32_t> map_;
  std::vector<int> first_slot_, next_slot_;          // [experts], [physical]
  std::vector<int32_t> count_;                       // [experts] number of replicas
  std::vector<double> per_replica_, with_one_less_;  // [experts]
  std::vector<double> solo_;      // [physical] load of experts with a single slot; else infinite
  std::vector<double> bin_load_;  // [bins]
  std::vector<int> bin_of_;       // [physical] −1: slot of a dead rank
  double mean_ = 0;
};

// Plans without regard to the current placement:
// 1. Each replica goes to the expert with the highest load per replica.
// 2. Replicas of one expert go to different ranks. Ranks are chosen so that shared experts connect
//    all ranks, and all ranks hold about the same number of replicated experts. Excess load of a
//    batch on one rank can then flow to all other ranks, along chains of shared experts.
// 3. Experts with one slot go, heaviest first, to the least loaded rank with a free slot.
void PlanFromScratch(LayerPlan* plan);

// Plans with few changes to the current placement: missing experts get a slot, empty slots are
// filled, and at most `budget` slots are reassigned from cold to hot experts. A slot is reassigned
// only if it improves the balance clearly: the hot expert's load per replica must exceed 1 +
// `slack` times the cold expert's load per replica after the change. Does not swap experts;
// ImproveBySwaps does.
void RepairPlan(double slack, int budget, LayerPlan* plan);

// Assigns the sets of experts of a new plan to ranks so that few experts move.

// A plan stays equally good if ranks exchange all their experts. So the contents of the living
// ranks of `next` [physical] are permuted to minimize transfers from `previous` [physical]. A
// transfer from another node costs `node_price` times as much as a transfer within the node.
// Experts that stay on a rank keep their slots. The assignment is greedy, followed by pairwise
// exchanges until no exchange improves the cost.
void MatchRanks(std::span<const int32_t> previous, const std::vector<RankSlots>& bins, int nodes,
                int num_logical, double node_price, std::span<int32_t> next);

// Puts the experts `wanted` into the slots `places` of a rank that holds `held`; all three have the
// same length. Experts that the rank keeps stay in their slots, the others fill the rest in order.
void KeepInSlots(std::span<const int32_t> held, std::span<const int32_t> wanted,
                 std::span<int32_t> places);

// Forecasts the expert load of the next steps from recorded steps.

struct LoadForecast {
  int layers = 0, experts = 0;
  std::vector<float> load;       // [layers, experts] tokens per step
  std::vector<float> half_life;  // [layers] steps after which the weight of a count halves

  std::span<const float> Layer(int layer) const {
    return std::span(load).subspan(static_cast<size_t>(layer) * experts, experts);
  }
};

// An exponentially weighted moving average for each layer. Several half-lives, 1 to 40 steps, run
// in parallel over the history. At each step, the forecast of each half-life is compared with the
// counts. The half-life with the least absolute error is selected; the weight of an error halves
// after 10 steps. So a steady load is averaged over the whole history, a drifting load follows the
// last steps, and after a sudden shift the old distribution is soon forgotten. Without steps all
// fields are 0.
LoadForecast Forecast(const LoadHistory& history);

// [scenarios, experts] loads of a layer in the last steps, at most `most`, scaled so that their
// mean equals the forecast `load` [experts]. With fewer than two steps: the forecast itself.
std::vector<std::vector<double>> LoadScenarios(const LoadHistory& history, int layer,
                                               std::span<const double> load, int most);

}  // namespace switchyard
