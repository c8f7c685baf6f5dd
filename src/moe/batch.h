// The state of one batch in an MoE layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "moe/router.h"
#include "moe/router_fault.h"
#include "moe/runner.h"
#include "moe/scratch.h"
#include "moe/shared_expert.h"
#include "moe/token_partition.h"
#include "moe/types.h"

namespace switchyard {

// Outputs of each stage that the next one reads, and the cursor over the batch's rounds. Reused
// between batches, so that the steady state allocates nothing.
struct MoeBatch {
  // Rows of this rank's attention group in this batch, and their outputs.
  const float* hidden = nullptr;  // [tokens, H]
  float* out = nullptr;           // [tokens, H]
  int64_t hidden_size = 0;        // H
  int64_t tokens = 0;
  bool decode = false;                // every sequence has one row, on all ranks
  int32_t* routed_experts = nullptr;  // [tokens, top_k] or null
  RouterFaults router_faults;         // [tokens]
  int64_t first_row = 0;              // index of the first token among the group's in the pass

  // Rows that this rank routes: its lane's tokens, or all tokens if there is no partition.
  std::optional<TokenPartition> partition;
  Scratch<float> gathered, lane_sums;
  const float* x = nullptr;  // [lane tokens, H]
  float* y = nullptr;        // [lane tokens, H]
  int64_t lane_tokens = 0;

  // The current round. Every rank has the same number of rounds.
  Share round;  // range of the lane's tokens
  int64_t rounds = 0, rounds_done = 0;
  int64_t max_round_tokens = 0;  // of one rank: capacity of one exchange
  bool combines_once = false;    // one combine for all rounds, after the last one

  Scratch<float> logits;  // of the router, [round, num_experts]
  TopK logical;           // [round, top_k] logical experts that the router selects
  TopK physical;          // [round, k] physical experts, where they differ
  const TopK* topk = nullptr;
  DispatchHandle handle;
  bool rows_staged = false;  // the caller already wrote the rows to InputRows' buffer
  Dispatched dispatched;
  GroupedRows grouped;
  // Runner outputs [grouped rows, H], unless the runner wrote them to OutputDestinations.
  Scratch<float> outputs;
  bool outputs_written = false;
  ExpertRows expert_rows;
  SharedExpertScratch shared;
  std::vector<size_t> part_sizes;      // of an all-gather or reduce-scatter, by member
  std::vector<int64_t> group_scratch;  // [dp]

  // Advances to the next round; false after the last one.
  bool NextRound() {
    if (rounds_done == rounds) return false;
    const int64_t first = rounds_done * max_round_tokens, begin = std::min(lane_tokens, first);
    round = {begin, std::min(lane_tokens, begin + max_round_tokens)};
    ++rounds_done;
    if (combines_once) handle.round = {first, rounds_done == rounds};
    return true;
  }

  const float* round_x() const { return x + round.begin * hidden_size; }
  float* round_y() const { return y + round.begin * hidden_size; }
  // Whether a combine ends with the current round, and its outputs.
  bool ends_combine() const { return handle.round.last; }
  float* combine_y() const { return combines_once ? y : round_y(); }
};

}  // namespace switchyard
