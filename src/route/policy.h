// Selects a worker for a request: by load, or by the prefixes of earlier prompts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/cache_aware.h"

namespace switchyard::route {

// The part of a request by which cache_aware recognizes common prefixes.

struct PromptInfo {
  std::string key;  // empty: no prompt was found
  // The request names a stored response, which only one worker has.
  bool names_stored_response = false;
  // The session that the request continues or closes (session_params.id of /generate, session_id of
  // /close_session); empty: none. Only the worker that opened the session has it.
  std::string session;
};

// Reads the prompt of a request to OpenAI's, Anthropic's or SGLang's endpoints: text, token ids, or
// tools and messages. If a request continues an earlier conversation, its key begins with the key
// of the earlier request. A body that is not a JSON object has no key; the worker rejects it.
PromptInfo ReadPrompt(std::string_view body);

// Policies that select the worker of a request. Open requests of a candidate are those that this
// router has sent to it. Ids of removed workers are never reused.

using Candidate = CacheAwareChoice::Candidate;

// May be called from any thread.
class Policy {
 public:
  virtual ~Policy() = default;
  // `candidates` is not empty and ascends by worker. `prompt`: the text or tokens by which requests
  // with a common prefix are recognized; may be empty.
  virtual int64_t Choose(std::span<const Candidate> candidates, std::string_view prompt) = 0;
  virtual void Forget(int64_t worker) { static_cast<void>(worker); }  // it was removed or restarted
};

inline constexpr const char* kPolicies[] = {"cache_aware", "power_of_two", "round_robin", "random"};

// Error kInvalid for an unknown name. `seed` is for policies that draw random numbers.
std::unique_ptr<Policy> MakePolicy(const std::string& name, const CacheAwareOptions& options,
                                   uint64_t seed);

}  // namespace switchyard::route
