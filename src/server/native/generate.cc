#include <charconv>
#include <chrono>
#include <cmath>
#include <iterator>
#include <mutex>

#include "core/format.h"
#include "server/api/accumulated.h"
#include "server/api/guarded.h"
#include "server/api/pending_response.h"
#include "server/http/error_body.h"
#include "server/http/responses.h"
#include "server/native/native.h"
#include "text/tokenizer/base64.h"

namespace switchyard::native {
namespace {

Json FinishReasonJson(const GenerationEvent& e) {
  switch (e.finish) {
    case FinishReason::kNone:
      return nullptr;
    case FinishReason::kLength:
      return {{"type", "length"}, {"length", e.completion_tokens}};
    case FinishReason::kAbort:
      return {{"type", "abort"}, {"message", "aborted"}};
    case FinishReason::kError:
      return {{"type", "abort"}, {"message", e.error}};
    case FinishReason::kStop:
      break;
  }
  Json reason = {{"type", "stop"}};
  if (const auto* id = std::get_if<int32_t>(&e.matched)) reason["matched"] = *id;
  if (const auto* text = std::get_if<std::string>(&e.matched)) reason["matched"] = *text;
  return reason;
}

// SGLang's form of a log-probability: [logprob, id, text]. The first element is null if the
// log-probability is undefined. The last element is null unless `text` is true.
Json Triple(const Tokenizer& tokenizer, float logprob, int32_t token, bool text) {
  return Json::array({std::isnan(logprob) ? Json(nullptr) : Json(logprob), token,
                      text ? Json(tokenizer.TokenText(token)) : Json(nullptr)});
}

Json Triples(const Tokenizer& tokenizer, const std::vector<TokenLogprob>& list, bool text) {
  Json out = Json::array();
  for (const TokenLogprob& t : list) out.push_back(Triple(tokenizer, t.logprob, t.token, text));
  return out;
}

void AddLogprobs(const Tokenizer& tokenizer, const GenerationSpec& spec, const char* kind,
                 const std::vector<PositionLogprobs>& positions, bool text, Json& meta) {
  Json chosen = Json::array(), top = Json::array(), requested = Json::array();
  for (const PositionLogprobs& p : positions) {
    chosen.push_back(Triple(tokenizer, p.logprob, p.token, text));
    // NaN: the first position of a prompt has no log-probability.
    top.push_back(std::isnan(p.logprob) ? Json(nullptr) : Triples(tokenizer, p.top, text));
    requested.push_back(std::isnan(p.logprob) ? Json(nullptr)
                                              : Triples(tokenizer, p.requested, text));
  }
  const std::string prefix = kind;
  meta[prefix + "_token_logprobs"] = std::move(chosen);
  if (spec.logprob.top > 0) meta[prefix + "_top_logprobs"] = std::move(top);
  if (!spec.logprob.token_ids.empty()) meta[prefix + "_token_ids_logprobs"] = std::move(requested);
}

// The output of one event, without the output of earlier events. The routed experts of all
// positions are in the last event.
Accumulated Segment(const GenerationEvent& event, const Accumulated& so_far) {
  Accumulated segment;
  segment.Add(event);
  if (event.finished()) segment.routed_experts = so_far.routed_experts;
  return segment;
}

void AppendIds(const std::vector<int32_t>& ids, std::string& out) {
  char digits[16];
  out += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    out.append(digits, std::to_chars(digits, std::end(digits), ids[i]).ptr);
  }
  out += ']';
}

// One response in SGLang's format, as JSON: text, output_ids, meta_info; in a stream of several
// generations also `index`. With return_logprob, meta_info also has lists of the prompt's
// log-probabilities; without `with_input`, these lists are empty. Ids are written directly as text,
// because every event of a stream repeats all tokens so far, and a JSON value for each is slow.
std::string GenerateAnswer(const Tokenizer& tokenizer, const GenerateBody& body, size_t index,
                           const Accumulated& a, bool with_input, double seconds) {
  const GenerationSpec& spec = body.specs[index];
  Json meta = MetaInfo(body, index, a, seconds);
  if (spec.logprob.enabled) {
    static const std::vector<PositionLogprobs> kNone;
    AddLogprobs(tokenizer, spec, "input", with_input ? a.input_logprobs : kNone,
                body.text_in_logprobs, meta);
    AddLogprobs(tokenizer, spec, "output", a.output_logprobs, body.text_in_logprobs, meta);
  }
  // int32 [positions, layers, top_k] in base64.
  if (spec.routed_experts.enabled && a.last.finished())
    meta["routed_experts"] = Base64(std::as_bytes(std::span(a.routed_experts)));
  std::string out = R"({"text":)" + Dump(a.text) + R"(,"output_ids":)";
  AppendIds(a.tokens, out);
  out += R"(,"meta_info":)" + Dump(meta);
  if (body.stream && !body.single) out += fmt::format(R"(,"index":{})", index);
  return out + '}';
}

}  // namespace

Json MetaInfo(const GenerateBody& body, size_t index, const Accumulated& a, double seconds) {
  const GenerationSpec& spec = body.specs[index];
  Json meta = {{"id", spec.name.empty() ? std::to_string(a.last.id) : spec.name},
               {"finish_reason", FinishReasonJson(a.last)},
               {"prompt_tokens", a.last.prompt_tokens},
               {"completion_tokens", a.last.completion_tokens},
               {"cached_tokens", a.last.cached_tokens},
               {"cached_tokens_details", CachedTokensDetails(a.last.cached_tokens)},
               {"weight_version", a.last.weight_version},
               {"e2e_latency", seconds}};
  if (const DraftCounts& drafts = a.last.drafts; drafts.steps > 0) {  // members with SGLang's names
    meta["spec_verify_ct"] = drafts.steps;
    meta["spec_draft_token_num"] = drafts.drafted;
    meta["spec_accept_token_num"] = drafts.accepted;
    meta["spec_accept_rate"] = static_cast<double>(drafts.accepted) / drafts.drafted;
    meta["spec_accept_length"] = 1 + static_cast<double>(drafts.accepted) / drafts.steps;
  }
  if (const DraftCounts& forced = a.last.forced; forced.steps > 0) {
    meta["jump_forward_ct"] = forced.steps;
    meta["jump_forward_draft_token_num"] = forced.drafted;
    meta["jump_forward_accept_token_num"] = forced.accepted;
  }
  if (body.prompt_ids) meta["prompt_token_ids"] = spec.input_ids;
  return meta;
}

namespace {

// Adds the request to its session; null if it has none. Aborts the requests that it replaces.
std::shared_ptr<Sessions::Turn> BeginTurn(Service& service, const http::Request& request,
                                          GenerateBody* body) {
  if (!body->session) return nullptr;
  GenerationSpec& spec = body->specs.front();
  if (spec.name.empty()) spec.name = request.id;
  std::vector<std::string> replaced;
  auto turn = service.sessions.Begin(*body->session, spec.name, spec.input_ids, &replaced);
  for (const std::string& name : replaced) service.front.AbortNamed(name);
  return turn;
}

// Later requests of the session may continue the request from now on, unless it failed.
void EndTurn(const std::shared_ptr<Sessions::Turn>& turn, const std::vector<Accumulated>& all) {
  if (turn && all.front().last.finish != FinishReason::kError) turn->End(all.front().tokens);
}

}  // namespace

void HandleGenerate(Service& service, const http::Request& request,
                    const http::Responder& responder) {
  service.front.CheckTask(/*pooled=*/false);
  GenerateBody parsed = ParseGenerateBody(service, ParseBody(request));
  const std::shared_ptr<Sessions::Turn> turn = BeginTurn(service, request, &parsed);
  auto body = std::make_shared<const GenerateBody>(std::move(parsed));
  const auto start = std::chrono::steady_clock::now();
  const auto answer = [&service, body, start](size_t i, const Accumulated& a, bool with_input) {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return GenerateAnswer(*service.model.tokenizer, *body, i, a, with_input, seconds);
  };
  PendingResponse::Events events;
  if (body->stream) {
    // As in SGLang, each event has the accumulated output, or with --stream-output only the new
    // part. The prompt's log-probabilities are long and constant, so only the first event has them.
    events.on_news = [&service, body, answer, responder](size_t i, const GenerationEvent& e,
                                                         const Accumulated& a) {
      if (e.finish == FinishReason::kError) {
        responder.Write(http::SseEvent(
            http::ErrorBody(http::StatusOf(e.error_kind), RedactPaths(service, e.error))));
        return;
      }
      const bool first = a.tokens.size() == e.tokens.size();
      responder.Write(
          http::SseEvent(body->segments ? answer(i, Segment(e, a), first) : answer(i, a, first)));
    };
    events.on_end = [responder, turn](const std::vector<Accumulated>& all) {
      EndTurn(turn, all);
      responder.Write(http::kSseDone);
      responder.EndStream();
    };
  } else {
    events.on_end = [&service, body, answer, responder, turn](const std::vector<Accumulated>& all) {
      EndTurn(turn, all);
      for (const Accumulated& a : all) {
        if (a.last.finish == FinishReason::kError)
          return responder.SendError(http::StatusOf(a.last.error_kind),
                                     RedactPaths(service, a.last.error));
      }
      std::string text = body->single ? "" : "[";
      for (size_t i = 0; i < all.size(); ++i) text += (i > 0 ? "," : "") + answer(i, all[i], true);
      responder.Send(200, http::kJson, body->single ? text : text + ']');
    };
  }
  PendingResponse::Start(service, body->specs, body->stream, responder, std::move(events));
}

}  // namespace switchyard::native
