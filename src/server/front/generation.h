// A generation as the HTTP handlers see it: text and ids in, text and ids out.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/error.h"
#include "engine/request.h"

namespace switchyard {

struct GenerationSpec {
  std::string name;        // the client's "rid", by which it may abort; may be empty
  std::string batch_name;  // aborts it too: the name of all prompts of its request
  int32_t copy = 0;        // which of the n copies of one prompt, all of one name
  std::vector<int32_t> input_ids;
  SamplingParams sampling;
  LogprobParams logprob;
  RoutedExpertsParams routed_experts;
  std::optional<int32_t> group;  // the attention group that serves it (data_parallel_rank)
  std::string cache_salt;        // keeps its cached prefixes from requests of another salt
  std::vector<std::string> stop;
  bool keep_stop = false;  // the stop string stays in the text (no_stop_trim)
  bool skip_special_tokens = true;
  // Tokens between two events. The default gives one event, at the end.
  int32_t stream_interval = std::numeric_limits<int32_t>::max();
};

// News of one generation: what has come since the event before.
struct GenerationEvent {
  uint64_t id = 0;
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<PositionLogprobs> input_logprobs;   // with the first event
  std::vector<PositionLogprobs> output_logprobs;  // one for each of `tokens`, where asked for
  // With output_logprobs, for each of `tokens`: how many characters of the generation's text come
  // before the one that the token begins in (TokenOffsets).
  std::vector<int64_t> token_offsets;
  std::vector<int32_t> routed_experts;  // as RequestOutput has them
  FinishReason finish = FinishReason::kNone;
  std::variant<std::monostate, int32_t, std::string> matched;  // the stop token id or stop string
  int32_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;  // totals so far
  std::string error;                                                    // of kError
  ErrorKind error_kind = ErrorKind::kResource;                          // of kError

  bool finished() const { return finish != FinishReason::kNone; }
};

// Called on the front's reader thread, in order, the last time with a finished event. Must not
// block or throw.
using GenerationCallback = std::function<void(const GenerationEvent&)>;

}  // namespace switchyard
