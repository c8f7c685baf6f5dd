// Divides load over replicas so that the slowest rank takes as little time as possible.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace switchyard {

// Reduces the number of experts divided over several replicas, with unchanged bin loads.

// An expert that is divided over two ranks has its weights read twice, and each of its GEMMs has
// fewer rows. So at equal rank loads, fewer divisions mean less work.
//
// Experts and bins are the nodes of a bipartite graph; positive shares are its edges. Load can be
// shifted around a cycle until one share is 0, without changing the load of any expert or bin. A
// graph without cycles is a forest, which has fewer edges than nodes. So at most bins − 1 shares
// remain in addition to one share per expert. (Basic solutions of a transportation problem are
// forests; T. Koopmans and S. Reiter, 1951.)
//
// Single-threaded; nothing is allocated after Reset.
class DivisionForest {
 public:
  // `bin_of`, `group_of` [edges]: the bin and the expert of each share. Experts may be numbered in
  // any way within [0, groups).
  void Reset(int num_bins, int num_groups, std::span<const int32_t> bin_of,
             std::span<const int32_t> group_of);

  // Prunes all cycles. `shares` [edges], not negative; modified in place.
  void Prune(std::span<double> shares);

 private:
  int32_t Above(int32_t node) const;  // parent; −1 for a root
  void MakeRoot(int32_t node);
  // Whether `edge` closes a cycle. If so, cycle_ holds its edges in order, starting with `edge`.
  // The expert of `edge` is a root afterwards.
  bool FindCycle(int32_t edge);
  void Cut(int32_t edge);

  int32_t bins_ = 0;
  std::vector<int32_t> bin_of_, group_of_;
  // [bins + groups] the edge to the parent; −1: none. Bins come first.
  std::vector<int32_t> up_;
  std::vector<int32_t> cycle_;  // scratch
};

// Divides the tokens of a batch over the replicas of their experts to minimize the maximum rank
// load, by water-filling. With costs of bins, the load of a bin is the time of its tokens.

// Reset prepares an instance for the placement of one layer: the bins (ranks) of each expert's
// replicas. An expert's load may be divided over its replicas in any way. Each thread has its own
// instance; nothing is allocated after Reset.
//
// Block coordinate descent: each replicated expert in turn distributes its load over its bins by
// water-filling, while the loads of all other experts are fixed. Sweeps alternate forward and
// backward. This minimizes the sum of squared bin loads, which is convex with constraints separable
// by expert, so the iteration converges to its unique minimum (P. Tseng, 2001). That division also
// has the least maximum load: if the most loaded bin could be relieved, the sum of squares would
// decrease. So the iteration converges to the exact optimum (replica_choice.h); `sweeps` bounds the
// distance from it.
// With costs, the sum of load² / cost is minimized instead, for the same reasons.
class WaterFilling {
 public:
  struct Replica {
    int32_t bin = 0;
    int32_t place = 0;  // index of the slot in `bin_of` and `expert_of`
  };

  // `bin_of` [slots]: −1 for unused slots; slots of a bin are contiguous. `expert_of` [slots]: the
  // expert of each slot. `offset`, not negative: the starting point among equally good replicas of
  // an expert. Ranks that each divide their own batch use different offsets; otherwise all of them
  // would choose the first replica. `costs` [bins], positive: the time of a token on each bin;
  // empty: 1.
  void Reset(int num_bins, int num_experts, std::span<const int32_t> bin_of,
             std::span<const int32_t> expert_of, int offset = 0,
             std::span<const double> costs = {});

  // Divides `load` [experts], not negative. Returns the load of the most loaded bin. Stops before
  // `sweeps` sweeps if no bin exceeds the mean by more than the fraction `tolerance`.
  double Fill(std::span<const double> load, int sweeps, double tolerance = 0);

  std::span<const double> bin_loads() const { return bins_; }  // [bins] after Fill
  // The load of each bin if tokens could be divided over the bins at will: without costs, the mean.
  double mean() const { return mean_; }
  // Writes the division of the last Fill to `shares` [slots], 0 for unused slots. Shares are whole
  // tokens if the loads were whole. Before that, the number of divided experts is reduced without a
  // change of the bin loads (DivisionForest). Tokens left over from rounding down go to the
  // emptier bins among those with a share.
  void Shares(std::span<int32_t> shares);

 private:
  struct Replicated {
    int32_t expert, begin, end;  // begin, end: range in replicas_
  };
  void FillExpert(const Replicated& group, double load);
  void PrepareForest();

  std::vector<Replica> replicas_;  // replicas of replicated experts, grouped by expert
  std::vector<Replicated> replicated_;
  std::vector<Replica> single_;  // [experts] the only replica; bin −1 if there are several or none
  std::vector<double> filled_;   // [replicas_] load of each replica
  std::vector<double> bins_;     // [bins] load of each bin
  std::vector<double> costs_;    // [bins] load of a token
  std::vector<int32_t> order_, begin_, last_bin_;  // scratch
  std::vector<double> load_;                       // [experts] of the last Fill
  std::vector<int32_t> receivers_;                 // scratch: replicas with a share
  DivisionForest forest_;                          // built by the first Shares after Reset
  bool forest_is_ready_ = false;
  double mean_ = 0;
  int offset_ = 0;
};

}  // namespace switchyard
