// Which rank does what: a pure function from the parallel sizes to coordinates and groups.
#pragma once

#include <string>
#include <vector>

namespace switchyard {

// Sizes mean what they mean in SGLang: the world of one engine is `tp` ranks, of which `ep` places
// hold different experts and tp / ep share each expert (MoE-TP).
struct MeshShape {
  int tp = 1;
  int ep = 1;
};

// One rank's place. Value type, no communication. Groups list world ranks in ascending order; a
// rank's index in a group is its rank there.
//
//   tp 8, ep 4:   rank        0 1 2 3 4 5 6 7
//                 ep rank     0 0 1 1 2 2 3 3      = rank / moe_tp
//                 moe-tp rank 0 1 0 1 0 1 0 1      = rank % moe_tp
//   EP groups {0,2,4,6} {1,3,5,7}; MoE-TP groups {0,1} {2,3} {4,5} {6,7}
class Mesh {
 public:
  Mesh() = default;  // one rank alone
  // Error kInvalid naming the flags where a size is below 1 or ep does not divide tp.
  Mesh(const MeshShape& shape, int rank);

  int rank() const { return rank_; }
  int world() const { return shape_.tp; }
  int tp() const { return shape_.tp; }
  int tp_rank() const { return rank_; }
  int ep() const { return shape_.ep; }
  int ep_rank() const { return rank_ / moe_tp(); }
  int moe_tp() const { return shape_.tp / shape_.ep; }
  int moe_tp_rank() const { return rank_ % moe_tp(); }

  std::vector<int> TpGroup() const;
  std::vector<int> EpGroup() const;  // ranks that hold different experts and the same slice of them
  std::vector<int> MoeTpGroup() const;  // ranks that hold different slices of the same experts

  std::string Title() const;  // "TP1 EP1"

 private:
  MeshShape shape_;
  int rank_ = 0;
};

}  // namespace switchyard
