#include "server/native/native.h"

#include "core/error.h"
#include "server/api/chat_output.h"
#include "server/api/guarded.h"
#include "server/api/json_body.h"
#include "server/api/request_fields.h"
#include "server/front/server_state.h"
#include "server/http/error_body.h"
#include "server/native/weights.h"

namespace switchyard::native {
namespace {

using RequestPtr = std::shared_ptr<const http::Request>;

// Tokenizes a prompt or list of prompts, or the messages of a chat.
void HandleTokenize(const Service& service, const http::Request& request,
                    const http::Responder& responder) {
  const Json body = ParseBody(request);
  const Fields f(body);
  CheckModel(service, f);
  CheckFields(f, RequestKind::kTokenize, service.unknown_fields);
  const Tokenizer& tokenizer = *service.model.tokenizer;
  const bool special = f.Bool("add_special_tokens", true);
  const bool spelled = f.Bool("return_token_strs", false);
  Json tokens = Json::array(), counts = Json::array(), strings = Json::array();
  const auto add = [&](const std::vector<int32_t>& ids) {
    tokens.push_back(ids);
    counts.push_back(ids.size());
    Json& own = strings.emplace_back(Json::array());
    if (!spelled) return;
    for (const int32_t id : ids) own.push_back(std::string(tokenizer.IdToToken(id)));
  };
  const Json* prompt = f.Find("prompt");
  const bool list = prompt && prompt->is_array() && !f.Has("messages");
  if (f.Has("messages")) {
    add(ChatPrompt(service.model, body).ids);
  } else if (list) {
    for (const std::string& text : f.Strings("prompt")) add(tokenizer.Encode(text, special));
  } else {
    if (!prompt)
      throw InvalidField("prompt", "prompt and messages are both missing, want one of them");
    add(tokenizer.Encode(f.String("prompt", ""), special));
  }
  Json answer = {{"tokens", list ? tokens : tokens[0]},
                 {"count", list ? counts : counts[0]},
                 {"max_model_len", service.plan.context_length}};
  if (spelled) answer["token_strs"] = list ? strings : strings[0];
  responder.Send(200, http::kJson, Dump(answer));
}

void HandleDetokenize(const Service& service, const http::Request& request,
                      const http::Responder& responder) {
  const Json body = ParseBody(request);
  const Fields f(body);
  CheckModel(service, f);
  CheckFields(f, RequestKind::kDetokenize, service.unknown_fields);
  const Json* tokens = f.Find("tokens");
  if (!tokens) throw InvalidField("tokens", "tokens is missing");
  const bool skip = f.Bool("skip_special_tokens", false);
  const auto decode = [&](const Json& list) {
    return service.model.tokenizer->Decode(ToIds(list, "tokens"), skip);
  };
  Json text;
  if (tokens->is_array() && !tokens->empty() && tokens->front().is_array()) {
    text = Json::array();
    for (const Json& list : *tokens) text.push_back(decode(list));
  } else {
    text = decode(*tokens);
  }
  responder.Send(200, http::kJson, Dump({{"text", text}, {"prompt", text}}));
}

// Throws if the ranks have been down for more than kShort seconds. A shorter restart only delays
// requests. The response (503) has a Retry-After header.
void RequireRanks(const RankHistory& ranks) {
  constexpr double kShort = 1;
  if (ranks.paused_for > kShort)
    throw Error(
        ErrorKind::kUnavailable,
        fmt::format("the ranks have been down for {:.1f} s; requests wait until they serve again",
                    ranks.paused_for));
}

Json HealthJson(const Service& service) {
  Json json = {{"status", "ok"}};
  const ElasticRanks* ranks = service.elastic;
  if (ranks == nullptr) return json;
  if (ranks->state().running) json["is_scaling_elastic_ep"] = true;
  if (const SpareRanks spares = ranks->spares(); spares.wanted > 0)
    json["spare_ranks"] = SparesJson(spares);
  return json;
}

// Checks that the engine works, and not only that the port is open: generates one token, or pools
// one prompt.
void HandleHealthGenerate(Service& service, const http::Responder& responder) {
  RequireReady(service);
  if (service.front.controls().paused)
    throw Error(ErrorKind::kUnavailable, "generation is paused", "POST /continue_generation");
  RequireMemory(service);
  RequireRanks(service.front.history());
  GenerationSpec spec;
  spec.input_ids = {service.model.config.bos_token_id.value_or(0)};
  spec.pooled = service.model.config.pooling.has_value();
  spec.sampling.max_new_tokens = spec.pooled ? 0 : 1;
  spec.sampling.temperature = 0;
  spec.sampling.ignore_eos = true;
  spec.measured = false;
  service.front.Submit(std::move(spec), [responder](const GenerationEvent& e) {
    if (e.finish == FinishReason::kError) return responder.SendError(503, e.error);
    responder.Send(200, http::kJson, R"({"status":"ok"})");
  });
}

// The checkpoint of the present weights.
std::string ModelPath(const Service& service) {
  const RankWeights* weights = service.weights;
  return weights ? weights->weights_state().model_path.string() : service.model.path.string();
}

void HandleModelInfo(const Service& service, const http::Responder& responder) {
  const ServerArgs& args = service.args;
  responder.Send(200, http::kJson,
                 Dump({{"model_path", ModelPath(service)},
                       {"tokenizer_path", args.tokenizer_path.empty() ? service.model.path.string()
                                                                      : args.tokenizer_path},
                       {"served_model_name", service.model.name},
                       {"is_generation", !service.model.config.pooling},
                       {"weight_version", service.front.weight_version()},
                       {"architecture", service.model.config.architecture},
                       {"max_model_len", service.plan.context_length},
                       {"vocab_size", service.model.config.vocab_size},
                       {"has_image_understanding", false},
                       {"has_audio_understanding", false}}));
}

// Adds the counts of speculative decoding.
void AddDrafts(const EngineStats& s, Json* state) {
  const auto ratio = [](int64_t count, int64_t of) {
    return of == 0 ? 0 : static_cast<double>(count) / static_cast<double>(of);
  };
  state->update({{"verify_steps", s.verify_steps},
                 {"draft_tokens", s.drafted_tokens},
                 {"accepted_draft_tokens", s.accepted_tokens},
                 {"wasted_draft_tokens", s.drafted_tokens - s.accepted_tokens},
                 {"verified_by_position", s.verified_by_position},
                 {"accepted_by_position", s.accepted_by_position},
                 {"avg_spec_accept_length", 1 + ratio(s.accepted_tokens, s.verify_steps)}});
}

// Adds the counts of jump-forward decoding.
void AddForced(const EngineStats& s, Json* state) {
  state->update({{"jump_forward_steps", s.forced_steps},
                 {"jump_forward_draft_tokens", s.forced_tokens},
                 {"accepted_jump_forward_draft_tokens", s.accepted_forced_tokens}});
}

// State of one attention group; `open`: its open requests.
Json StateJson(const EngineStats& s, int64_t open) {
  Json state = {{"open_requests", open}};
  state.update(GroupStatsJson(s));
  return state;
}

// The name of a format of tool calls or reasoning; null if it is not parsed.
template <typename Format>
Json NameOf(const Format* format) {
  return format ? Json(format->name) : Json(nullptr);
}

void HandleServerInfo(Service& service, const http::Responder& responder) {
  RequireReady(service);
  const EngineConfig& e = service.args.engine;
  const EnginePlan& plan = service.plan;
  const LayoutSizes sizes = service.sizes();
  const MeshShape& mesh = sizes.mesh;
  const int dp = mesh.attention_groups();
  const EngineControls controls = service.front.controls();
  Json info = {{"model_path", ModelPath(service)},
               {"served_model_name", service.model.name},
               {"dtype", Name(plan.dtype)},
               {"kv_cache_dtype", Name(plan.kv_dtype)},
               {"tp_size", mesh.tp},
               {"ep_size", mesh.ep},
               {"dp_size", dp},
               {"pp_size", mesh.pp},
               {"enable_dp_attention", dp > 1},
               {"load_balance_method", e.load_balance_method},
               {"moe_dense_tp_size", mesh.dense_tp == 0 ? mesh.tp : mesh.dense_tp},
               {"moe_a2a_backend", e.moe.a2a_backend},
               {"moe_runner_backend", e.moe.runner_backend},
               {"deepep_mode", e.moe.deepep_mode},
               {"ep_num_redundant_experts", e.moe.num_redundant_experts},
               {"init_expert_location", e.moe.init_expert_location},
               {"context_length", plan.context_length},
               {"page_size", e.page_size},
               {"max_total_num_tokens", sizes.num_pages * e.page_size},
               {"max_running_requests", service.running_limit() * dp},
               {"generation_paused", controls.paused},
               {"forward_sleep_time", controls.step_delay_seconds},
               {"chunked_prefill_size",
                sizes.chunked_prefill_size < 0 ? -1 : sizes.chunked_prefill_size * dp},
               {"disable_radix_cache", e.disable_radix_cache},
               {"jump_forward", plan.max_forced > 0},
               {"is_embedding", service.model.config.pooling.has_value()},
               {"tool_call_parser", NameOf(service.model.output_format.calls)},
               {"reasoning_parser", NameOf(service.model.output_format.reasoning)},
               {"version", SWITCHYARD_VERSION}};
  if (const ElasticRanks* ranks = service.elastic)
    info["spare_ranks"] = SparesJson(ranks->spares());
  const bool speculates = plan.drafts.most > 0;
  if (speculates) {
    info["speculative_algorithm"] = e.speculative.algorithm;
    const DraftLimits& drafts = plan.drafts;
    info["speculative_num_steps"] =
        drafts.adapts ? Json("auto") : Json(drafts.trees() ? drafts.depth : drafts.most);
    info["speculative_eagle_topk"] = drafts.width;
    info["speculative_num_draft_tokens"] = plan.drafts.most + 1;
    if (!e.speculative.token_map.empty()) info["speculative_token_map"] = e.speculative.token_map;
    info["speculative_moe_a2a_backend"] = e.moe.speculative_a2a_backend;
    info["speculative_moe_runner_backend"] = e.moe.speculative_runner_backend;
  }
  service.front.Stats([info = std::move(info), open = service.front.open_by_group(), speculates,
                       jumps = plan.max_forced > 0,
                       responder](const std::vector<EngineStats>& groups) mutable {
    if (groups.empty()) return responder.SendError(503, kRanksLost);
    Json states = Json::array();
    open.resize(groups.size());  // the number of groups may have changed since the query
    for (size_t g = 0; g < groups.size(); ++g) {
      states.push_back(StateJson(groups[g], open[g]));
      if (speculates) AddDrafts(groups[g], &states.back());
      if (jumps) AddForced(groups[g], &states.back());
    }
    info["internal_states"] = std::move(states);
    responder.Send(200, http::kJson, Dump(info));
  });
}

void HandleFlushCache(Service& service, const http::Responder& responder) {
  RequireReady(service);
  const auto respond = [responder](bool done) {
    if (done) return responder.Send(200, "text/plain", "Cache flushed.\n");
    responder.SendError(400, "the cache was not flushed: requests are running");
  };
  if (MemoryReleased(service)) return respond(true);
  service.front.FlushCache(respond);
}

void HandleAbort(Service& service, const http::Request& request, const http::Responder& responder) {
  const Json body = ParseBody(request);
  const Fields f(body);
  CheckFields(f, RequestKind::kAbort, service.unknown_fields);
  if (f.Bool("abort_all", false)) {
    service.front.AbortAll();
  } else if (const std::string name = f.String("rid", ""); !name.empty()) {
    service.front.AbortNamed(name);
  } else {
    throw InvalidField("rid", "rid is missing, want rid or abort_all");
  }
  responder.Send(200, http::kJson, "{}");
}

}  // namespace

void RequireServing(const Service& service) {
  if (service.front.ranks_lost()) throw Error(ErrorKind::kUnavailable, kRanksLost);
  if (service.front.draining()) throw Error(ErrorKind::kUnavailable, "the server is shutting down");
  if (!service.ready)
    throw Error(ErrorKind::kUnavailable, "the server is still loading", "try again later");
}

void RequireReady(const Service& service) {
  RequireServing(service);
  if (const std::string silent = service.find_silent_rank(); !silent.empty())
    throw Error(ErrorKind::kUnavailable, silent);
}

bool MemoryReleased(const Service& service) {
  const RankWeights* weights = service.weights;
  return weights != nullptr && weights->weights_state().released.any();
}

void RequireMemory(const Service& service) {
  if (MemoryReleased(service))
    throw Error(ErrorKind::kUnavailable, "memory of the ranks is released",
                "POST /resume_memory_occupation");
}

void Register(http::Server& server, Service& service) {
  RegisterControls(server, service);
  RegisterExperts(server, service);
  RegisterElastic(server, service);
  RegisterEplb(server, service);
  RegisterMetrics(server, service);
  RegisterParsers(server, service);
  RegisterProfile(server, service);
  RegisterWeights(server, service);
  const auto route = [&](const char* method, const char* path, http::Handler handler) {
    server.Route(method, path, Guarded(service, std::move(handler)));
  };
  route("POST", "/generate",
        [&](const RequestPtr& r, const http::Responder& out) { HandleGenerate(service, *r, out); });
  for (const char* path : {"/tokenize", "/v1/tokenize"}) {
    route("POST", path, [&](const RequestPtr& r, const http::Responder& out) {
      HandleTokenize(service, *r, out);
    });
  }
  for (const char* path : {"/detokenize", "/v1/detokenize"}) {
    route("POST", path, [&](const RequestPtr& r, const http::Responder& out) {
      HandleDetokenize(service, *r, out);
    });
  }
  route("GET", "/health", [&](const RequestPtr&, const http::Responder& out) {
    RequireReady(service);
    RequireRanks(service.front.history());
    out.Send(200, http::kJson, Dump(HealthJson(service)));
  });
  route("GET", "/health_generate",
        [&](const RequestPtr&, const http::Responder& out) { HandleHealthGenerate(service, out); });
  route("GET", "/version", [](const RequestPtr&, const http::Responder& out) {
    out.Send(200, http::kJson, Dump(Json::object({{"version", SWITCHYARD_VERSION}})));
  });
  for (const char* path : {"/get_model_info", "/model_info"}) {
    route("GET", path,
          [&](const RequestPtr&, const http::Responder& out) { HandleModelInfo(service, out); });
  }
  for (const char* path : {"/get_weight_version", "/weight_version"}) {
    route("GET", path, [&](const RequestPtr&, const http::Responder& out) {
      out.Send(200, http::kJson, Dump({{"weight_version", service.front.weight_version()}}));
    });
  }
  for (const char* path : {"/get_server_info", "/server_info"}) {
    route("GET", path,
          [&](const RequestPtr&, const http::Responder& out) { HandleServerInfo(service, out); });
  }
  const auto control = [&](const char* path, http::Handler handler) {
    server.Route("POST", path, Guarded(service, std::move(handler)), http::Access::kControl);
  };
  control("/flush_cache",
          [&](const RequestPtr&, const http::Responder& out) { HandleFlushCache(service, out); });
  control("/abort_request",
          [&](const RequestPtr& r, const http::Responder& out) { HandleAbort(service, *r, out); });
}

}  // namespace switchyard::native
