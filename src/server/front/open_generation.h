// The state of one generation in the front: from a rank's outputs to the events of a request.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/front/front.h"
#include "server/front/token_text.h"
#include "text/tokenizer/detokenizer.h"

namespace switchyard {

// One open generation. After Submit, only the thread of OnMessage modifies it, except for the
// members guarded by mutex_. Once `ending` is true, only the thread that set `ending` modifies it.
struct Front::Open {
  GenerationSpec spec;
  GenerationCallback callback;
  IncrementalDetokenizer detokenizer;
  StopStrings stop;
  TokenOffsets offsets;  // used only with log-probabilities
  const Tokenizer& tokenizer;
  GenerationEvent next;  // accumulates output until stream_interval tokens or the end
  metrics::RequestTimes times{.submitted = std::chrono::steady_clock::now()};
  int group = 0;
  int64_t tokens = 0;  // number of tokens reported to controller_; guarded by mutex_
  // Time of submission, or of the first token once `running` is true, plus the time for which
  // generation was paused since then. Guarded by mutex_.
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  bool running = false;  // the first token has arrived
  std::string overdue;   // error message if the request was aborted because of a timeout
  bool sent = false;     // the ranks have the request
  bool aborted = false;  // an abort was sent, or the request ends without one
  // kOwn also after the ranks of a decode worker have ended: the new ranks compute the prompt.
  KvRole kv_role = KvRole::kOwn;
  bool ending = false;  // its last event is on the way; later output of the ranks is dropped
  // Ranks that have failed with the request in their batch, since it was last cleared of suspicion.
  // Guarded by mutex_.
  std::set<int> failed_ranks;
  // All output tokens, which new ranks need to continue the request. Other threads read them only
  // during a pause.
  std::vector<int32_t> output;

  Open(uint64_t id, const Tokenizer& tokenizer, GenerationSpec s, GenerationCallback c)
      : spec(std::move(s)),
        callback(std::move(c)),
        detokenizer(tokenizer, spec.skip_special_tokens, spec.input_ids),
        stop(spec.stop, spec.keep_stop),
        tokenizer(tokenizer) {
    next.id = id;
    next.prompt_tokens = static_cast<int32_t>(spec.input_ids.size());
  }

  CachedPrompt prompt() const { return {.ids = spec.input_ids, .cache_salt = spec.cache_salt}; }
  // The request with its output so far, to be sent to ranks. `trial`: the request ends with kLength
  // after kTrialTokens more tokens.
  EngineRequest Request(Pooling pooling, bool trial) const;
  // Whether `last` ends only the trial, so that the request continues afterwards.
  bool PassesTrial(const RequestOutput& last) const;

  void Take(const RequestOutput& output);
  void AppendToken(const RequestOutput& output, size_t i);
  std::string TextOf(int32_t token, bool hidden);
  // Stop strings match only after the first min_new_tokens tokens, as in vLLM.
  bool MayStop() const { return next.completion_tokens > spec.sampling.min_new_tokens; }
  void Emit();
};

}  // namespace switchyard
