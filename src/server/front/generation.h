// Input and output of one generation, as the HTTP handlers use them: token ids and text.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/error.h"
#include "engine/request.h"
#include "grammar/compiler.h"
#include "server/front/kv_transfers.h"
#include "server/metrics/request_metrics.h"

namespace switchyard {

struct GenerationSpec {
  std::string name;  // the client's "rid", used to abort the request; may be empty
  // Common name of all prompts of one HTTP request; an abort of it ends all of them.
  std::string batch_name;
  int32_t copy = 0;  // index among the n samples of one prompt, which have the same name
  std::vector<int32_t> input_ids;
  SamplingParams sampling;
  LogprobParams logprob;
  RoutedExpertsParams routed_experts;
  bool pooled = false;           // the result is GenerationEvent::pooled; nothing is generated
  std::optional<int32_t> group;  // attention group that serves the request (data_parallel_rank)
  int32_t priority = 0;          // larger values are admitted first (--enable-priority-scheduling)
  std::string cache_salt;        // cached prefixes are shared only between requests of equal salt
  std::shared_ptr<const ReadyGrammar> grammar;  // grammar of the output; null: not constrained
  std::vector<std::string> stop;
  bool keep_stop = false;  // the stop string stays in the text (no_stop_trim)
  bool skip_special_tokens = true;
  // Special tokens that stay in the text despite skip_special_tokens: markers of an output parser.
  std::vector<int32_t> shown_special_tokens;
  std::optional<KvRoom> kv;  // the other server of the request; nullopt: there is none
  bool token_ends = false;   // fill GenerationEvent::token_ends
  bool measured = true;      // counted in the metrics of requests; false: the server's own probes
  // Number of new tokens after which an event is sent. The default sends one event, at the end.
  int32_t stream_interval = std::numeric_limits<int32_t>::max();
};

// Maximum number of alternative tokens at prompt positions. The limit applies to each generation,
// because one event holds its alternatives. It also applies to the sum over an HTTP request,
// because one JSON value holds them all.
inline constexpr int64_t kMaxPromptAlternatives = int64_t{1} << 21;
// Number of alternatives that `spec` requests at prompt positions.
int64_t CountPromptAlternatives(const GenerationSpec& spec);

// New output of one generation since its previous event.
struct GenerationEvent {
  uint64_t id = 0;
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<PositionLogprobs> input_logprobs;   // only in the first event
  std::vector<PositionLogprobs> output_logprobs;  // one for each of `tokens`, if requested
  // With output_logprobs: for each of `tokens`, the offset in the generation's text of the
  // character in which the token begins (TokenOffsets).
  std::vector<int64_t> token_offsets;
  // If requested: for each of `tokens`, the number of bytes of `text` that could be shown after
  // that token. Bytes beyond the last value were held back until the end of the generation.
  std::vector<uint32_t> token_ends;
  std::vector<int32_t> routed_experts;  // same layout as RequestOutput::routed_experts
  std::vector<float> pooled;            // as in RequestOutput
  FinishReason finish = FinishReason::kNone;
  std::variant<std::monostate, int32_t, std::string> matched;  // stop token id or stop string
  int32_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;  // totals so far
  DraftCounts drafts, forced;                                           // as in RequestOutput
  metrics::RequestTimes times;                  // set in the last event of a measured generation
  std::string weight_version;                   // of the ranks that have the request
  std::string error;                            // set with FinishReason::kError
  ErrorKind error_kind = ErrorKind::kResource;  // set with FinishReason::kError

  bool finished() const { return finish != FinishReason::kNone; }
};

// Called in order on the front's reader thread. In the last call, the event is finished. The
// callback must not block or throw.
using GenerationCallback = std::function<void(const GenerationEvent&)>;

}  // namespace switchyard
