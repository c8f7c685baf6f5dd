// Reduces the number of experts divided over several replicas, with unchanged bin loads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace switchyard {

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

}  // namespace switchyard
