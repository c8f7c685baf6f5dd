// One open request on a rank: its tokens so far and how many of them are cached.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/range.h"
#include "engine/kv_cache/kv_cache.h"
#include "engine/rank_grammars.h"
#include "engine/request.h"
#include "engine/speculative/forced_pace.h"
#include "engine/speculative/ngram_pace.h"

namespace switchyard {

// Owned by the rank engine's table from Apply until the request is finished. The scheduler moves
// the sequence between its queue and its running set; the rank engine appends tokens.
//
//   tokens:  [ prompt                          | output            ]
//   cache:   [ computed                |  pending: rows to compute ]
//
// A running sequence computes its pending rows chunk by chunk. The pass with the last pending row
// gives the next token. A sequence with an output token and one pending row is decoding. A
// retracted sequence has computed = 0 and keeps its tokens, so it resumes where it was.
struct Sequence {
  // With output_ids, the sequence resumes like one that was retracted after these output tokens.
  explicit Sequence(EngineRequest request);

  EngineRequest request;
  std::vector<int32_t> tokens;
  int64_t prompt_length = 0;
  int64_t computed = 0;
  // Number of leading rows whose passes have ended. Only keys and values of these rows are
  // published, because a pass may give values that are not finite.
  int64_t settled = 0;
  SequencePages cache;

  // The first prompt position whose logprobs are still pending; prompt_length: none.
  int64_t next_logprob = 0;
  std::vector<PositionLogprobs> input_logprobs;  // computed, sent with the first output

  // The first position whose routed experts are still pending; kNone: not requested.
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t next_routed = kNone;
  std::vector<int32_t> routed_experts;  // [positions, layers, top_k] sent with the next output

  std::unique_ptr<SequenceGrammar> grammar;  // null: the output is not constrained
  // For pooled sequences, which never decode: the sum over all rows so far (kMean) or the last row
  // (kLast), and the first position that is not yet in the sum.
  std::vector<double> pooled_sum;  // [output_width]
  int64_t next_pooled = 0;

  // Description of the first router fault in this sequence; empty: none.
  std::string router_fault;

  // While a token is being sampled, its entry in `tokens` is kUnknown. When the pass ends, the
  // entry becomes the token sampled for logit row `unknown_row` of that pass.
  static constexpr int32_t kUnknown = -1;
  int64_t unknown = 0;  // number of kUnknown entries, at the end of `tokens`
  int32_t unknown_row = 0;
  // Whether the length limit is reached, so that nothing is left to schedule.
  bool complete = false;

  // Speculative decoding: guesses of the tokens that follow `tokens`. The next decode step computes
  // their rows too, and keeps those that equal the tokens it samples. Their keys and values are
  // beyond `computed`, and are overwritten after a rejection.
  std::vector<int32_t> drafts;
  // With a tree of drafts: DraftTree::parents. The row of draft i is at position `computed` plus
  // its depth. Until it is verified, its key and value are in the slot of position `computed` + i
  // + 1.
  std::vector<int32_t> draft_parents;
  // The rows of the last verification that were kept, relative to its first row.
  std::vector<int32_t> kept_rows;
  bool drafts_forced = false;          // the drafts are those of GrammarDrafter
  ForcedPace forced_pace;              // limits the drafts of GrammarDrafter
  std::unique_ptr<NgramState> ngrams;  // of NgramDrafter; null: not created yet
  // Number of leading rows that are in the draft model's cache. After a reuse of cached prefixes
  // their rows are assumed to be there; a wrong row gives worse drafts only.
  int64_t draft_computed = 0;
  // [rows, H] the target's hidden rows from `draft_computed` on, for an MTP layer that was not run.
  std::vector<float> saved_hidden;
  // With several MTP layers (DraftForward::depths): the position of the first row of saved_hidden.
  // It may be before `draft_computed`, since later layers compute the last rows again.
  int64_t saved_begin = 0;
  DraftCounts draft_counts, forced_counts;  // drafts of the algorithm; of GrammarDrafter

  // Number of times that the sequence was admitted. The rows of a pass in flight that began before
  // the last admission are computed again, in other pages. With pipeline stages, its results are
  // dropped.
  uint64_t admissions = 0;
  int64_t pooled_end = 0;  // on the last stage: the first position that is not in pooled_sum
  // On the last stage: chosen experts that no result has carried yet, up to position `end`. They
  // are computed again after an admission, because results may have been dropped.
  struct StagedRouted {
    std::vector<int32_t> rows;
    int64_t end = 0;
    uint64_t admission = 0;  // `admissions` of the rows
  };
  StagedRouted staged_routed;
  // On the last stage: the grammar has accepted the tokens of the pass in flight, because each
  // draft needs the state after the one before.
  bool grammar_ahead = false;
  uint64_t planned = 0;  // number of the last step in which the sequence was decoding
  // KvRole::kExport. wanted: another engine has pages for the prompt. first_sent: the first token
  // was returned, and the pages were given to another request after that.
  bool wanted = false, first_sent = false;
  int64_t exported = 0;  // leading positions that another engine may read (KvRole::kExport)

  bool admitted_before = false;
  int32_t cached_tokens = 0;  // prompt tokens from the cache at the first admission

  std::chrono::steady_clock::time_point arrival = std::chrono::steady_clock::now();
  float queue_seconds = -1;  // from the arrival to the first planned rows; −1: none yet

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t pending() const { return length() - computed; }
  int64_t output_length() const { return length() - prompt_length; }
  bool decoding() const { return pending() == 1 && output_length() > 0; }
  bool logprobs_pending() const { return next_logprob < prompt_length; }
  bool pooled() const { return request.pooling != Pooling::kNone; }
  // Whether all rows from some position on give logits, not only the last row.
  bool needs_many_rows() const { return logprobs_pending() || request.pooling == Pooling::kMean; }
  bool routed_experts_pending() const { return next_routed != kNone; }
  int64_t known_length() const { return length() - unknown; }
  std::span<const int32_t> prompt() const { return std::span(tokens).first(prompt_length); }
  std::span<const int32_t> output() const { return std::span(tokens).subspan(prompt_length); }
  std::span<const int32_t> settled_tokens() const {
    return std::span(tokens).first(std::min(computed, settled));
  }

  // Discards all drafts but the first `most`.
  void KeepDrafts(int64_t most) {
    if (std::ssize(drafts) > most) drafts.resize(most);
    if (std::ssize(draft_parents) > most) draft_parents.resize(most);
  }
  // Discards the tokens from `end` on, and their keys and values.
  void Truncate(int64_t end) {
    tokens.resize(end);
    unknown = 0;
    computed = std::min(computed, end);
    settled = std::min(settled, end);
  }

  // The number of leading tokens that may come from the cache. At least one row is computed. A row
  // is also computed if it is needed for pending logprobs (row p − 1 gives those of position p),
  // for pending routed experts, or for the mean of a pooled sequence.
  int64_t max_reusable() const;
  // The rows whose logits are needed, among the `rows` that follow `computed`. Rows beyond the
  // length belong to drafts.
  Range LogitRows(int64_t rows) const;

 private:
  void Resume();  // enters request.output_ids
};

}  // namespace switchyard
