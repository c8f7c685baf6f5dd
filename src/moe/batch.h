// One batch on its way through a MoE layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "moe/router.h"
#include "moe/runner.h"
#include "moe/scratch.h"
#include "moe/shared_expert.h"
#include "moe/types.h"

namespace switchyard {

// What each stage leaves for the next, and the cursor over the batch's rounds. Kept between
// batches, so that steady work allocates nothing.
struct MoeBatch {
  // The batch, the same on every rank of the TP group.
  const float* hidden = nullptr;  // [tokens, H]
  float* out = nullptr;           // [tokens, H]
  int64_t hidden_size = 0;        // H
  int64_t tokens = 0;
  bool decode = false;
  int64_t max_round_tokens = 0;  // what the dispatcher takes at a time
  int parts = 1, part = 0;       // a round's tokens are spread over `parts` ranks; this is one

  // The round under way: tokens of all ranks, and of them the ones this rank answers for.
  Share round, own;

  Scratch<float> logits;  // of the router, [own, num_experts]
  TopK topk;              // [own, k]
  DispatchHandle handle;
  Dispatched dispatched;
  GroupedRows grouped;
  Scratch<float> outputs;  // of the runner, [grouped rows, H]
  ExpertRows expert_rows;
  SharedExpertScratch shared;
  std::vector<size_t> part_bytes;  // [parts] of each part of the round, to gather them

  // Moves on to the next round; false when all tokens are done. Every rank sees the same rounds.
  bool NextRound() {
    round = {round.end, std::min(tokens, round.end + max_round_tokens)};
    const Share share = EvenShare(round.size(), parts, part);
    own = {round.begin + share.begin, round.begin + share.end};
    return round.size() > 0;
  }

  const float* own_hidden() const { return hidden + own.begin * hidden_size; }
  float* own_out() const { return out + own.begin * hidden_size; }
  float* round_out() const { return out + round.begin * hidden_size; }
};

}  // namespace switchyard
