// Device mesh: maps the parallel sizes to each rank's coordinates and groups. Pure functions.
#pragma once

#include <string>
#include <vector>

namespace switchyard {

// Sizes as in SGLang: the world of one engine has `tp` ranks. They form `ep` partitions with
// different experts; the tp / ep ranks of a partition shard each expert (MoE-TP).
struct MeshShape {
  int tp = 1;
  int ep = 1;
  // Number of attention groups, each with its own batches (`--dp-size` with
  // `--enable-dp-attention`).
  int dp = 1;
  // Number of ranks that shard a dense feed-forward (`--moe-dense-tp-size`). 0 or tp: the whole
  // world, on gathered tokens. 1: each rank holds all of it and processes its own tokens.
  int dense_tp = 0;
};

// One rank's coordinates. Value type, no communication. Groups list world ranks in ascending order;
// a rank's index in this list is its rank in the group.
//
//   tp 8, ep 4:   rank        0 1 2 3 4 5 6 7
//                 ep rank     0 0 1 1 2 2 3 3      = rank / moe_tp
//                 moe-tp rank 0 1 0 1 0 1 0 1      = rank % moe_tp
//   EP groups {0,2,4,6} {1,3,5,7}; MoE-TP groups {0,1} {2,3} {4,5} {6,7}
//
// With DP attention the world is divided into dp runs of attn_tp = tp / dp consecutive ranks. Each
// run computes attention for its own requests: tp 8, dp 2 gives attention groups {0,1,2,3}
// {4,5,6,7}. Without it, dp is 1 and the only attention group is the world.
class Mesh {
 public:
  Mesh() = default;  // a single rank
  // Error kInvalid names the flags. Sizes must be at least 1, ep and dp must divide tp, and
  // dense_tp must be 0, 1 or tp.
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
  // Whether a dense feed-forward is replicated; each rank then processes its own tokens.
  bool replicated_dense() const { return shape_.dense_tp == 1; }
  const MeshShape& shape() const { return shape_; }

  std::vector<int> TpGroup() const;
  std::vector<int> AttnTpGroup() const;  // ranks that shard attention for the same requests
  std::vector<int> EpGroup() const;      // ranks that hold the same slice of different experts
  std::vector<int> MoeTpGroup() const;   // ranks that hold different slices of the same experts

  std::string Title() const;  // "TP1 EP1", with DP attention "DP0 TP1 EP1"

 private:
  MeshShape shape_;
  int rank_ = 0;
};

}  // namespace switchyard
