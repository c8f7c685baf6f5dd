// SGLang's native endpoints, and the parsers of their bodies.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "eplb/manager_options.h"
#include "profile/options.h"
#include "server/api/accumulated.h"
#include "server/api/json_body.h"
#include "server/front/elastic_ranks.h"
#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::native {

// Registers SGLang's native endpoints: /generate, /tokenize, /detokenize, /health, /get_model_info,
// /flush_cache, /start_profile and others.

void Register(http::Server& server, Service& service);

// SGLang's controls of a running server: pauses, delays, limits, logs and sessions.

// POST /pause_generation, /continue_generation, /slow_down, /set_internal_state,
// /configure_logging, /open_session, /close_session and /freeze_gc, and GET /get_load.
void RegisterControls(http::Server& server, Service& service);

// Parses the body of /pause_generation. Throws RequestError.
PauseAction ParsePause(const Json& body);
// Parses the body of /slow_down: the seconds before each step; 0: none. Throws RequestError.
double ParseSlowDown(const Json& body);
// Applies the body of /set_internal_state for a layout of these sizes. Throws RequestError that
// names a field of server_args that cannot be changed.
void ApplyServerArgs(const Json& body, const LayoutSizes& sizes, EngineControls* controls);

// POST /scale_elastic_ep and /is_scaling_elastic_ep: planned changes of the ranks.

// Parses the body of /scale_elastic_ep. Throws RequestError that names the field if a field is
// malformed or unknown.
ScaleRequest ParseScale(const Json& body);

// `server` must not outlive `service`.
void RegisterElastic(http::Server& server, Service& service);

// Endpoints of expert load balancing (EPLB).

// GET /eplb: status of --enable-eplb. POST /eplb/rebalance: starts a rebalance; 409 if one is
// running or no load has been recorded yet.
void RegisterEplb(http::Server& server, Service& service);

// The status in the form of GET /eplb, without "options".
Json EplbStatusJson(const EplbStatus& status);
// The experts in the slots of each layer; null without `slots` (EplbReport::slots).
Json PlacementJson(const std::vector<int32_t>& slots, const Service& service);

// Endpoints of expert load: recording, GET /expert_distribution and GET /metrics.

// SGLang's POST /start_, /stop_ and /dump_expert_distribution_record, and GET /expert_distribution.
void RegisterExperts(http::Server& server, Service& service);

// GET /metrics in the text format of Prometheus. It responds also while the server loads or drains.
void RegisterMetrics(http::Server& server, Service& service);

// The error of requests that the ranks cannot answer any more.
inline constexpr char kRanksLost[] = "the server has lost its ranks";

// Throws Error kUnavailable while the server loads or drains, and after the ranks are lost.
void RequireServing(const Service& service);
// Like RequireServing, but throws Error kUnavailable also if a rank has no recent heartbeat.
void RequireReady(const Service& service);
// Whether memory of the ranks is released (/release_memory_occupation). Then nothing runs, the
// cache is empty, and a query to the ranks would wait until the memory is resumed.
bool MemoryReleased(const Service& service);
// Throws Error kUnavailable while memory of the ranks is released.
void RequireMemory(const Service& service);

// POST /generate: SGLang's native interface.

// Parsed body of /generate: one or more prompts, each with `n` copies.
struct GenerateBody {
  std::vector<GenerationSpec> specs;
  bool single = true;  // the response is one object, not a list
  bool stream = false;
  bool text_in_logprobs = false;
  bool prompt_ids = false;               // return_prompt_token_ids
  bool segments = false;                 // --stream-output: an event has only the new output
  std::optional<SessionParams> session;  // session_params; then there is one spec
};
GenerateBody ParseGenerateBody(const Service& service, const Json& body);

// SGLang's meta_info of generation `index`, without log-probabilities and routed experts.
// `seconds`: since the request.
Json MetaInfo(const GenerateBody& body, size_t index, const Accumulated& a, double seconds);

void HandleGenerate(Service& service, const http::Request& request,
                    const http::Responder& responder);

// POST /parse_function_call and POST /separate_reasoning: parse a given text, without the model.

void RegisterParsers(http::Server& server, const Service& service);

// SGLang's POST /start_profile and /stop_profile: traces of the operations of every rank.

void RegisterProfile(http::Server& server, Service& service);

// The profile that the body of /start_profile requests. Each field of SGLang's ProfileReqInput is
// either honoured or refused. `gpus`: whether ranks are on GPUs. Throws RequestError, which names
// the field, for an invalid or unknown field.
profile::Options ParseProfile(const Json& body, bool gpus);

}  // namespace switchyard::native
