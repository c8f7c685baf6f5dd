// Device mesh: maps the parallel sizes to each rank's coordinates and groups. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard {

// Sizes as in SGLang: the world of one engine has pp stages of `tp` ranks. The ranks of a stage
// form `ep` partitions with different experts; the tp / ep ranks of a partition shard each expert
// (MoE-TP).
struct MeshShape {
  int tp = 1;
  int ep = 1;
  // Number of attention groups, each with its own batches (`--dp-size` with
  // `--enable-dp-attention`).
  int dp = 1;
  // Number of ranks that shard a dense feed-forward (`--moe-dense-tp-size`). 0 or tp: all
  // ranks of the stage, on gathered tokens. 1: each rank holds all of it and processes its own
  // tokens.
  int dense_tp = 0;
  // Number of pipeline stages, each with a contiguous range of layers (`--pp-size`).
  int pp = 1;
  // Number of ranks, the last ones, that hold routed experts only (`--expert-ranks`). Each of them
  // counts as an attention group that never has tokens. So ep and dp equal tp, and dense_tp is 1.
  int expert_ranks = 0;
  // [ep] number of physical experts of each EP rank (`--expert-slots`); empty: equal parts.
  std::vector<int32_t> expert_slots;

  int world() const { return pp * tp; }
  // Number of attention groups that have requests.
  int attention_groups() const { return dp - expert_ranks; }
  // Number of EP ranks, the first ones, that may have tokens.
  int token_ranks() const { return expert_ranks > 0 ? tp - expert_ranks : ep; }
};

// One rank's coordinates. Value type, no communication. Groups list world ranks in ascending order;
// a rank's index in this list is its rank in the group. The world is divided into pp stages of tp
// consecutive ranks. All groups but PpGroup are within a stage. The examples have one stage; in
// stage s, add s · tp to each rank of a group.
//
//   tp 8, ep 4:   rank        0 1 2 3 4 5 6 7
//                 ep rank     0 0 1 1 2 2 3 3      = rank / moe_tp
//                 moe-tp rank 0 1 0 1 0 1 0 1      = rank % moe_tp
//   EP groups {0,2,4,6} {1,3,5,7}; MoE-TP groups {0,1} {2,3} {4,5} {6,7}
//
// With DP attention a stage is divided into dp runs of attn_tp = tp / dp consecutive ranks. Each
// run computes attention for its own requests: tp 8, dp 2 gives attention groups {0,1,2,3}
// {4,5,6,7}. Without it, dp is 1 and the only attention group is the stage.
class Mesh {
 public:
  Mesh() = default;  // a single rank
  // Error kInvalid names the flags. Sizes must be at least 1, ep and dp must divide tp, and
  // dense_tp must be 0, 1 or tp. With expert_ranks, ep and dp must equal tp, dense_tp and pp must
  // be 1, and a rank with attention must be left. expert_slots must be empty or have `ep` positive
  // numbers. `rank`: in the world.
  Mesh(const MeshShape& shape, int rank);

  int rank() const { return rank_; }
  int world() const { return shape_.world(); }
  int pp() const { return shape_.pp; }
  int pp_rank() const { return rank_ / shape_.tp; }  // the stage
  int tp() const { return shape_.tp; }
  int tp_rank() const { return rank_ % shape_.tp; }
  int ep() const { return shape_.ep; }
  int ep_rank() const { return tp_rank() / moe_tp(); }
  int moe_tp() const { return shape_.tp / shape_.ep; }
  int moe_tp_rank() const { return tp_rank() % moe_tp(); }
  int dp() const { return shape_.dp; }
  int dp_rank() const { return tp_rank() / attn_tp(); }
  int attn_tp() const { return shape_.tp / shape_.dp; }
  int attn_tp_rank() const { return tp_rank() % attn_tp(); }
  bool first_stage() const { return pp_rank() == 0; }
  bool last_stage() const { return pp_rank() + 1 == pp(); }
  // Whether a dense feed-forward is replicated; each rank then processes its own tokens.
  bool replicated_dense() const { return shape_.dense_tp == 1; }
  // Whether the rank has attention, dense layers, routers, shared experts and the head. Otherwise
  // it holds routed experts only.
  bool attends() const { return tp_rank() < shape_.tp - shape_.expert_ranks; }
  const MeshShape& shape() const { return shape_; }

  // The stage as a world of its own: the same places and groups, with ranks numbered from 0.
  Mesh Stage() const;

  std::vector<int> World() const;
  std::vector<int> PpGroup() const;      // ranks with the same place in each stage
  std::vector<int> TpGroup() const;      // the stage
  std::vector<int> AttnTpGroup() const;  // ranks that shard attention for the same requests
  std::vector<int> EpGroup() const;      // ranks that hold the same slice of different experts
  std::vector<int> MoeTpGroup() const;   // ranks that hold different slices of the same experts

  // "TP1 EP1", with DP attention "DP0 TP1 EP1", with several stages "PP0 TP1 EP1", for a rank with
  // experts only "TP1 EP1 experts"
  std::string Title() const;

 private:
  int first() const { return pp_rank() * tp(); }  // world rank of the stage's first rank

  MeshShape shape_;
  int rank_ = 0;
};

}  // namespace switchyard
