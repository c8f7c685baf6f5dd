#include "moe/dispatchers/token_partition.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "quant/formats.h"

namespace switchyard {

void TokenPartition::Reset(const Mesh& mesh, std::span<const int64_t> group_tokens) {
  CHECK_EQ(static_cast<int>(group_tokens.size()), mesh.dp());
  const int attn_tp = mesh.attn_tp(), moe_tp = mesh.moe_tp();
  own_.resize(mesh.tp());
  longest_lane_ = 0;
  for (int rank = 0; rank < mesh.tp(); ++rank)
    own_[rank] = EvenPart(group_tokens[rank / attn_tp], attn_tp, rank % attn_tp);
  total_ = std::accumulate(group_tokens.begin(), group_tokens.end(), int64_t{0});

  for (int first = 0; first < mesh.tp(); first += moe_tp) {
    int64_t tokens = 0;
    for (int rank = first; rank < first + moe_tp; ++rank) {
      if (rank == mesh.tp_rank()) own_in_lane_ = tokens;
      tokens += own_[rank].size();
    }
    longest_lane_ = std::max(longest_lane_, tokens);
    if (first / moe_tp == mesh.ep_rank()) lane_tokens_ = tokens;
  }
  lane_is_local_ = attn_tp % moe_tp == 0;
  lane_begin_ = own_[mesh.ep_rank() * moe_tp].begin;
}

OwnTokens OwnInRound(Range own, int64_t in_lane, Range round) {
  const int64_t first = std::max(in_lane, round.begin);
  const int64_t end = std::max(first, std::min(in_lane + own.size(), round.end));
  return {.in_round = {first - round.begin, end - round.begin},
          .in_group = own.begin + first - in_lane};
}

int64_t MaxLaneTokens(const MeshShape& mesh, int64_t max_tokens) {
  const int attn_tp = mesh.tp / mesh.dp, moe_tp = mesh.tp / mesh.ep;
  return std::min(moe_tp * CeilDiv(max_tokens, attn_tp), max_tokens * CeilDiv(moe_tp, attn_tp));
}

}  // namespace switchyard
