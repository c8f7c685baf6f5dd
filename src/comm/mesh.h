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
  // Attention groups with batches of their own (`--dp-size` with `--enable-dp-attention`).
  int dp = 1;
  // Ranks that share a dense feed-forward (`--moe-dense-tp-size`): 0 or tp, the whole world on
  // gathered tokens; 1, each rank for tokens of its own.
  int dense_tp = 0;
};

// One rank's place. Value type, no communication. Groups list world ranks in ascending order; a
// rank's index in a group is its rank there.
//
//   tp 8, ep 4:   rank        0 1 2 3 4 5 6 7
//                 ep rank     0 0 1 1 2 2 3 3      = rank / moe_tp
//                 moe-tp rank 0 1 0 1 0 1 0 1      = rank % moe_tp
//   EP groups {0,2,4,6} {1,3,5,7}; MoE-TP groups {0,1} {2,3} {4,5} {6,7}
//
// With DP attention the world is cut into dp runs of attn_tp = tp / dp ranks; each run attends for
// requests of its own: tp 8, dp 2 gives attention groups {0,1,2,3} {4,5,6,7}. Without, dp is 1 and
// the one attention group is the world.
class Mesh {
 public:
  Mesh() = default;  // one rank alone
  // Error kInvalid naming the flags where a size is below 1, ep or dp does not divide tp, or
  // dense_tp is none of 0, 1 and tp.
  Mesh(const MeshShape& shape, int rank);

  int rank() const { return rank_; }
  int world() const { return shape_.tp; }
  int tp() const { return shape_.tp; }
  int tp_rank() const { return rank_; }
  int ep() const { return shape_.ep; }
  int ep_rank() const { return rank_ / moe_tp(); }
  int moe_tp() const { return shape_.tp / shape_.ep; }
  int moe_tp_rank() const { return rank_ % moe_tp(); }
  int dp() const { return shape_.dp; }
  int dp_rank() const { return rank_ / attn_tp(); }
  int attn_tp() const { return shape_.tp / shape_.dp; }
  int attn_tp_rank() const { return rank_ % attn_tp(); }
  // Whether a dense feed-forward is whole on each rank, which then puts its own tokens through it.
  bool whole_dense() const { return shape_.dense_tp == 1; }
  const MeshShape& shape() const { return shape_; }

  std::vector<int> TpGroup() const;
  std::vector<int> AttnTpGroup() const;  // ranks that attend for the same requests
  std::vector<int> EpGroup() const;  // ranks that hold different experts and the same slice of them
  std::vector<int> MoeTpGroup() const;  // ranks that hold different slices of the same experts

  std::string Title() const;  // "TP1 EP1", with DP attention "DP0 TP1 EP1"

 private:
  MeshShape shape_;
  int rank_ = 0;
};

}  // namespace switchyard
