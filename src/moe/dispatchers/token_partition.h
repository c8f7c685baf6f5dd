// Partitions a batch's tokens over ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/mesh.h"
#include "moe/types.h"

namespace switchyard {

// Every rank of an attention group has all tokens of its group. The exchange partitions these
// tokens evenly over the group's ranks: the part of a rank is its *own* tokens. The ranks of an
// MoE-TP group hold slices of the same experts, so each of them needs the own tokens of all of
// them: its *lane*. Each computes a partial output of the lane; a reduce-scatter sums the partial
// outputs and leaves each rank with its own tokens.
//
//   tp 4, dp 2, ep 2 (MoE-TP groups {0,1} {2,3}), 5 tokens in group 0 and 2 in group 1:
//     rank    0      1      2    3
//     own     0..2   3..4   0    1        (token indices in the attention group)
//     lane    0..4 of group 0    0..1 of group 1
//
// Pure: every rank computes the same result from the token counts of all groups.
class TokenPartition {
 public:
  TokenPartition() = default;  // no tokens; call Reset before use
  // group_tokens [dp]: tokens of each attention group.
  TokenPartition(const Mesh& mesh, std::span<const int64_t> group_tokens) {
    Reset(mesh, group_tokens);
  }
  // Recomputes the partition and reuses the memory.
  void Reset(const Mesh& mesh, std::span<const int64_t> group_tokens);

  Range own(int rank) const {
    return own_[rank];
  }                                         // the rank's own tokens, a range of its group's tokens
  int64_t total() const { return total_; }  // tokens of all groups
  // Number of tokens in this rank's lane, and the index of its first own token in the lane.
  int64_t lane_tokens() const { return lane_tokens_; }
  int64_t own_in_lane() const { return own_in_lane_; }
  // Number of tokens in the longest lane of all ranks. It determines the number of exchange rounds,
  // so every rank has the same number of rounds.
  int64_t longest_lane() const { return longest_lane_; }
  // Whether a lane's tokens are contiguous in one attention group, beginning at lane_begin(). If
  // so, no gather is needed.
  bool lane_is_local() const { return lane_is_local_; }
  int64_t lane_begin() const { return lane_begin_; }

 private:
  std::vector<Range> own_;  // [tp]
  int64_t total_ = 0, lane_tokens_ = 0, own_in_lane_ = 0, longest_lane_ = 0, lane_begin_ = 0;
  bool lane_is_local_ = true;
};

// The tokens of a round that a rank routes for its group: their range in the round, and the index
// of the first of them in the group.
struct OwnTokens {
  Range in_round;
  int64_t in_group = 0;
};
// `own`: the rank's own tokens, a range of the tokens of its group. `in_lane`: index of the first
// own token in the rank's lane. `round`: a range of the lane.
OwnTokens OwnInRound(Range own, int64_t in_lane, Range round);

// The maximum number of tokens in a lane if no attention group has more than `max_tokens`.
int64_t MaxLaneTokens(const MeshShape& mesh, int64_t max_tokens);

}  // namespace switchyard
