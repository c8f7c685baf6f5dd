// One batch on its way through a MoE layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "moe/router.h"
#include "moe/runner.h"
#include "moe/scratch.h"
#include "moe/shared_expert.h"
#include "moe/token_spread.h"
#include "moe/types.h"

namespace switchyard {

// What each stage leaves for the next, and the cursor over the batch's rounds. Kept between
// batches, so that steady work allocates nothing.
struct MoeBatch {
  // The rows of this rank's attention group that are in this batch, and their outputs.
  const float* hidden = nullptr;  // [tokens, H]
  float* out = nullptr;           // [tokens, H]
  int64_t hidden_size = 0;        // H
  int64_t tokens = 0;
  bool decode = false;                // every sequence has one row, on all ranks
  int32_t* routed_experts = nullptr;  // [tokens, top_k] or null
  int32_t* router_faults = nullptr;   // [tokens] or null
  int64_t first_row = 0;              // of these tokens among the group's in the pass

  // Rows that this rank routes: its lane's, or without a spread all tokens.
  std::optional<TokenSpread> spread;
  Scratch<float> gathered, lane_sums;
  const float* x = nullptr;  // [lane tokens, H]
  float* y = nullptr;        // [lane tokens, H]
  int64_t lane_tokens = 0;

  // The round under way, the same number of rounds on every rank.
  Share round;  // of the lane's tokens
  int64_t rounds = 0, rounds_done = 0;
  int64_t max_round_tokens = 0;  // of one rank: what the exchange takes at a time

  Scratch<float> logits;  // of the router, [round, num_experts]
  TopK logical;           // [round, top_k] the router's choice
  TopK physical;          // [round, k] the same by place, where that differs
  const TopK* topk = nullptr;
  DispatchHandle handle;
  bool rows_placed = false;  // the caller of the layer wrote them where InputRows said
  Dispatched dispatched;
  GroupedRows grouped;
  // Of the runner, [grouped rows, H], unless it left them where the dispatcher said.
  Scratch<float> outputs;
  bool outputs_left = false;
  ExpertRows expert_rows;
  SharedExpertScratch shared;
  std::vector<size_t> part_sizes;      // of a gather or scatter, by member
  std::vector<int64_t> group_scratch;  // [dp]

  // Moves on to the next round; false when all are done.
  bool NextRound() {
    if (rounds_done == rounds) return false;
    const int64_t begin = std::min(lane_tokens, rounds_done * max_round_tokens);
    round = {begin, std::min(lane_tokens, begin + max_round_tokens)};
    ++rounds_done;
    return true;
  }

  const float* round_x() const { return x + round.begin * hidden_size; }
  float* round_y() const { return y + round.begin * hidden_size; }
};

}  // namespace switchyard
