#include "server/front/open_generation.h"

#include <algorithm>
#include <vector>

#include "server/front/token_text.h"

namespace switchyard {
namespace {

template <typename T>
void AppendTo(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

// Processes tokens one by one, so that the generation ends at the token that completes a stop
// string.
void Front::Open::Take(const RequestOutput& output) {
  next.cached_tokens = output.cached_tokens;
  next.drafts = output.drafts;
  next.forced = output.forced;
  AppendTo(next.input_logprobs, output.input_logprobs);
  AppendTo(next.routed_experts, output.routed_experts);
  AppendTo(next.pooled, output.pooled);
  const size_t tokens = output.new_tokens.size();
  size_t taken = 0;
  while (taken < tokens && !stop.matched()) AppendToken(output, taken++);
  // An output with several tokens has one row of experts for each of them.
  if (taken < tokens)
    next.routed_experts.resize(next.routed_experts.size() -
                               output.routed_experts.size() / tokens * (tokens - taken));
  const bool ended = output.finish != FinishReason::kNone;
  if (ended && !stop.matched())
    next.text += stop.Push({.text = detokenizer.Finish(), .may_stop = MayStop()});
  if (stop.matched()) {
    next.finish = FinishReason::kStop;
    next.matched = *stop.matched();
  } else if (ended) {
    next.finish = output.finish;
    next.error = output.error;
    next.error_kind = output.error_kind;
    if (output.finish == FinishReason::kStop) next.matched = output.matched;
    next.text += stop.Finish();
  }
}

void Front::Open::AppendToken(const RequestOutput& output, size_t i) {
  const int32_t token = output.new_tokens[i];
  next.tokens.push_back(token);
  this->output.push_back(token);
  ++next.completion_tokens;
  if (i < output.output_logprobs.size()) next.output_logprobs.push_back(output.output_logprobs[i]);
  // The text of a stop token is not part of the output, unless keep_stop is set.
  const bool ends = output.finish == FinishReason::kStop && i + 1 == output.new_tokens.size();
  next.text += TextOf(token, ends && !spec.keep_stop);
  if (spec.token_ends) next.token_ends.push_back(static_cast<uint32_t>(next.text.size()));
}

// Adds `token` and returns the text that can now be shown. The text of a `hidden` token is left
// out.
std::string Front::Open::TextOf(int32_t token, bool hidden) {
  const std::vector<int32_t>& shown_special = spec.shown_special_tokens;
  const bool shown_marker =
      std::find(shown_special.begin(), shown_special.end(), token) != shown_special.end();
  const bool skipped = spec.skip_special_tokens && !shown_marker && tokenizer.IsSpecial(token);
  const std::string text = hidden ? "" : detokenizer.Push({&token, 1}, shown_marker);
  if (spec.logprob.enabled) {
    const std::string bytes = hidden || skipped ? "" : TokenBytes(tokenizer, token);
    next.token_offsets.push_back(offsets.Begin(bytes));
    offsets.Push(bytes, text);
  }
  std::string shown = stop.Push({.text = text, .may_stop = MayStop()});
  // Stop strings are also matched with special tokens that are not shown.
  if (skipped && !hidden && !stop.empty())
    shown += stop.Push({.text = tokenizer.IdToToken(token), .may_stop = MayStop(), .hidden = true});
  return shown;
}

void Front::Open::Emit() {
  GenerationEvent event = next;
  next.text.clear();
  next.tokens.clear();
  next.input_logprobs.clear();
  next.output_logprobs.clear();
  next.token_offsets.clear();
  next.token_ends.clear();
  next.routed_experts.clear();
  next.pooled.clear();
  callback(event);
}

}  // namespace switchyard
