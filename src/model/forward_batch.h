// The input of one forward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/ops.h"
#include "kernels/recurrent.h"
#include "kernels/sample_params.h"

namespace switchyard {

// Masks of the tokens that may be sampled in some rows, by the grammars of their outputs.
struct TokenMasks {
  std::vector<int32_t> rows;  // [logit_rows] index of the row's mask; −1: every token is allowed
  std::vector<uint32_t> words;  // [masks, MaskWords(vocab)] one bit for each token
};

// One forward pass of one attention group: the new rows of every sequence of its batch,
// concatenated, decoding sequences first. Equal on every rank of the group. A group may have no
// rows.
struct ForwardBatch {
  // The number of the pass, larger than those of earlier passes and the same on all ranks.
  // Recorders and choosers of replicas distinguish passes in flight by this number.
  uint64_t pass = 0;
  std::vector<int32_t> tokens;  // [T]
  // [T] or empty: the logit row of the previous batch whose sampled token is this row's token; −1:
  // the token is the row's entry of `tokens`. Used if a batch is planned before the previous batch
  // has ended.
  std::vector<int32_t> token_rows;
  std::vector<int32_t> positions;  // [T]
  std::vector<int32_t> slots;      // [T] cache slot of each row's key and value
  // With a tree of drafts, a sequence of the engine has several spans, one for each branch.
  std::vector<kernels::SequenceSpan> sequences;
  // [sequences] the slots of the recurrent states, if the model has them; else empty.
  std::vector<kernels::StateSpan> states;
  std::vector<int32_t> branch_slots;  // memory of SequenceSpan::branch
  std::vector<int32_t> logit_rows;    // rows whose logits are computed, ascending
  std::vector<uint64_t> request_ids;  // [sequences] EngineRequest::id; Forward does not read them
  // Number of leading rows that belong to decoding sequences. Each of these sequences has one row,
  // and one more for each draft.
  int64_t decode_tokens = 0;
  bool routed_experts = false;  // whether Model::routed_experts is needed
  // [logit_rows] if the model samples the tokens itself (Model::draws); else empty.
  std::vector<kernels::RowSampling> draws;
  // With `draws`: the number of most probable tokens of each logit row that the model selects too
  // (Model::best), at most kernels::kMostBestTokens.
  int32_t best_tokens = 0;
  // With `draws`: returns the masks, which the model reads before its next pass. The model calls it
  // once per pass, after the pass is enqueued and before tokens are sampled. So the host can
  // compute masks while the device computes the pass. The call may end sequences and free their
  // pages, so `pages` of `sequences` must not be read afterwards. Null: every token is allowed.
  std::function<const TokenMasks&()> masks;
  // [dp] tokens.size(), decode_tokens and logit_rows.size() of each attention group, this one
  // included. May be empty if there is only one.
  std::vector<int64_t> group_tokens, group_decode_tokens, group_logit_rows;
  bool groups_want_routed_experts = false;  // whether any group's batch has `routed_experts`

  // Input of MTP layers and EAGLE heads: rows of hidden states in the device's memory
  // (Model::hidden), and the row of each token [T]. Each element of `tokens` is the token after its
  // row's position. Rows of the target are [., target_row_width()]. With `own_hidden`, they are
  // rows of the model itself, [., H].
  const float* hidden = nullptr;
  std::vector<int32_t> hidden_rows;
  bool own_hidden = false;
  // The MTP layer that runs, with ModelConfig::mtp_depths. Each element of `tokens` is then the
  // token after the next `depth` ones. Equal in all groups.
  int32_t depth = 0;
  // If true, rows other than `logit_rows` only store keys and values: the last layer computes
  // queries, experts and outputs for `logit_rows` only, and Model::hidden has these rows only. The
  // logit rows of a sequence are its last ones. Supported on CPUs only, and not together with
  // `routed_experts`. Equal in all groups.
  bool only_logit_rows = false;
  // Whether the pass may be recorded as a CUDA graph. Equal in all groups.
  bool may_record = true;

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
};

}  // namespace switchyard
