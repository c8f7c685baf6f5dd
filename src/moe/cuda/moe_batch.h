// One batch on its way through a MoE layer of a GPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "moe/cuda/expert_rows.h"
#include "moe/cuda/row_exchange.h"
#include "moe/token_spread.h"

namespace switchyard::cuda {

// What each stage leaves for the next, and the cursor over the batch's rounds; moe/batch.h of
// device memory. Kept between batches.
struct CudaMoeBatch {
  // The rows of this rank's attention group that are in this batch, and their outputs.
  const float* hidden = nullptr;  // [tokens, H]
  float* out = nullptr;           // [tokens, H]
  int64_t tokens = 0;
  int32_t* routed_experts = nullptr;  // [tokens, top_k] on the device, or null

  // Rows that this rank routes: its lane's, or without a spread all tokens.
  bool spreads = false;
  TokenSpread spread;
  std::vector<int64_t> lanes;  // [ep] tokens of every rank's lane; without a spread [1] all tokens
  const float* x = nullptr;    // [lane tokens, H]
  float* y = nullptr;          // [lane tokens, H]
  int64_t lane_tokens = 0;
  Share own;  // among the group's tokens

  RowExchange* exchange = nullptr;  // null: rows do not travel
  Share round;                      // of the lane's tokens
  int64_t rounds = 0, rounds_done = 0;
  int64_t max_round_tokens = 0;

  // Rows that are here after dispatch, and which experts of this rank they are for.
  struct Arrived {
    RowSegments in;
    const std::byte* rows = nullptr;
    int64_t row_stride = 0, scale_offset = 0;
    ElementType type = ElementType::kF32;
    bool travelled = false;          // else they are float32, and not rounded yet
    const int32_t* ids = nullptr;    // [segments · capacity, k] local
    const float* weights = nullptr;  // likewise, where they did not travel
    int64_t slots = 0;               // the most that may be for this rank's experts
    int64_t usual_slots = 0;         // where tokens spread evenly over ranks
  } arrived;
  RowOrder order;
  int64_t ordered_rows = 0;           // the most, padding included
  std::vector<size_t> part_sizes;     // of a gather or scatter, by member
  std::vector<int64_t> other_tokens;  // [dp]

  // Moves on to the next round; false when all are done.
  bool NextRound() {
    if (rounds_done == rounds) return false;
    round = RoundOf(lane_tokens);
    ++rounds_done;
    return true;
  }
  // The part of a lane of so many tokens that goes in the next round.
  Share RoundOf(int64_t lane) const {
    const int64_t begin = std::min(lane, rounds_done * max_round_tokens);
    return {begin, std::min(lane, begin + max_round_tokens)};
  }
  // Tokens of a lane in the round under way.
  int64_t InRound(int64_t lane) const {
    return std::clamp<int64_t>(lane - (rounds_done - 1) * max_round_tokens, 0, max_round_tokens);
  }
  int64_t LongestInRound() const { return InRound(std::ranges::max(lanes)); }
};

}  // namespace switchyard::cuda
