// The state of one batch in an MoE layer on a GPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "moe/cuda/expert_rows.h"
#include "moe/cuda/row_exchange.h"
#include "moe/router_fault.h"
#include "moe/token_partition.h"

namespace switchyard::cuda {

// Outputs of each stage that the next one reads, and the cursor over the batch's rounds:
// moe/batch.h for device memory. Reused between batches.
struct CudaMoeBatch {
  // Rows of this rank's attention group in this batch, and their outputs.
  const float* hidden = nullptr;  // [tokens, H]
  float* out = nullptr;           // [tokens, H]
  int64_t tokens = 0;
  int32_t* routed_experts = nullptr;  // [tokens, top_k] on the device, or null
  RouterFaults router_faults;         // [tokens] on the device

  // Rows that this rank routes: its lane's tokens, or all tokens if there is no partition.
  bool spreads = false;
  TokenPartition partition;
  std::vector<int64_t> lanes;  // [ep] tokens of every rank's lane; without a partition [1] all
  const float* x = nullptr;    // [lane tokens, H]
  float* y = nullptr;          // [lane tokens, H]
  int64_t lane_tokens = 0;
  Share own;  // range of the group's tokens

  RowExchange* exchange = nullptr;  // null: rows are not exchanged
  Share round;                      // range of the lane's tokens
  int64_t rounds = 0, rounds_done = 0;
  int64_t max_round_tokens = 0;

  // Received rows after dispatch, and the local experts of each.
  struct Arrived {
    RowSegments in;
    const std::byte* rows = nullptr;
    int64_t row_stride = 0, scale_offset = 0;
    ElementType type = ElementType::kF32;
    bool travelled = false;          // false: float32, not rounded yet
    const int32_t* ids = nullptr;    // [segments · capacity, k] local
    const float* weights = nullptr;  // the same shape; if rows were not exchanged
    int64_t slots = 0;               // maximum for this rank's experts
    int64_t expected_slots = 0;      // expected under even load over ranks
  } arrived;
  RowOrder order;
  int64_t ordered_rows = 0;           // maximum, padding included
  std::vector<size_t> part_sizes;     // of an all-gather or reduce-scatter, by member
  std::vector<int64_t> other_tokens;  // [dp]

  // Advances to the next round; false after the last one.
  bool NextRound() {
    if (rounds_done == rounds) return false;
    round = RoundOf(lane_tokens);
    ++rounds_done;
    return true;
  }
  // The range of a lane of `lane` tokens in the next round.
  Share RoundOf(int64_t lane) const {
    const int64_t begin = std::min(lane, rounds_done * max_round_tokens);
    return {begin, std::min(lane, begin + max_round_tokens)};
  }
  // Tokens of a lane in the current round.
  int64_t InRound(int64_t lane) const {
    return std::clamp<int64_t>(lane - (rounds_done - 1) * max_round_tokens, 0, max_round_tokens);
  }
  int64_t LongestInRound() const { return InRound(std::ranges::max(lanes)); }
  OwnTokens OwnOfRound() const {
    return OwnInRound(own, spreads ? partition.own_in_lane() : 0, round);
  }
};

}  // namespace switchyard::cuda
