// A division of load over replicas with as few divided experts as can be, bins as full as before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace switchyard {

// An expert whose tokens go to two ranks has its weights read twice, and products of fewer rows
// each time: at equal loads of the ranks, fewer divisions are less work.
//
// Experts and bins are nodes of a graph, shares above 0 its edges. Around a cycle of it load can be
// handed on until one share is 0, which changes no expert's load and no bin's; without cycles it is
// a forest, whose edges are fewer than its nodes: all experts together have at most bins − 1 shares
// more than one each. (That basic solutions of a transportation problem are forests is textbook; T.
// Koopmans and S. Reiter, 1951.)
//
// One thread; nothing is allocated after Reset.
class DivisionForest {
 public:
  // `bin_of`, `group_of` [edges]: the bin and the expert (any numbering, in [0, groups)) of each
  // share.
  void Reset(int num_bins, int num_groups, std::span<const int32_t> bin_of,
             std::span<const int32_t> group_of);

  // `shares` [edges], not negative.
  void Prune(std::span<double> shares);

 private:
  int32_t Above(int32_t node) const;  // −1: a root
  void MakeRoot(int32_t node);
  // Whether `edge` closes a cycle: then cycle_ has its edges in order, this one first. Its expert
  // is a root afterwards.
  bool FindCycle(int32_t edge);
  void Cut(int32_t edge);

  int32_t bins_ = 0;
  std::vector<int32_t> bin_of_, group_of_;
  // [bins + groups] the edge to the node above; −1: none. Bins come first.
  std::vector<int32_t> up_;
  std::vector<int32_t> cycle_;  // scratch
};

}  // namespace switchyard
