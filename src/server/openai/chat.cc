#include "server/openai/chat.h"

#include <limits>

#include "server/api/chat_fields.h"
#include "server/api/chat_prompt.h"
#include "server/api/copies.h"
#include "server/api/guarded.h"
#include "server/api/model_name.h"
#include "server/api/pending_response.h"
#include "server/api/sampling_fields.h"
#include "server/http/error_body.h"
#include "server/http/sse.h"
#include "server/openai/common.h"
#include "server/openai/logprobs.h"

namespace switchyard::openai {

struct ChatJob {
  Delivery delivery;
  WantedLogprobs logprobs;
  bool prompt_ids = false;            // return_prompt_token_ids
  std::vector<GenerationSpec> specs;  // the n copies
};

namespace {

using JobPtr = std::shared_ptr<const ChatJob>;

Json Logprobs(const ChatJob& job, const Tokenizer& tokenizer,
              const std::vector<PositionLogprobs>& positions) {
  if (!job.logprobs.output) return nullptr;
  return ChatLogprobs({tokenizer, job.logprobs.as_ids}, positions, job.logprobs.top);
}

std::string Chunk(const ChatJob& job, Json choices, Json usage, bool first = false) {
  Json chunk = Envelope(job.delivery, "chat.completion.chunk", std::move(choices));
  if (first && job.prompt_ids) chunk["prompt_token_ids"] = job.specs[0].input_ids;
  if (job.delivery.include_usage || job.delivery.continuous_usage)
    chunk["usage"] = std::move(usage);
  return http::SseEvent(Dump(chunk));
}

// The event that opens the message of choice i.
std::string OpeningChunk(const ChatJob& job, size_t i, const GenerationEvent& e) {
  Json choice = {{"index", i},
                 {"delta", {{"role", "assistant"}, {"content", ""}}},
                 {"logprobs", nullptr},
                 {"finish_reason", nullptr},
                 {"matched_stop", nullptr}};
  return Chunk(job, Json::array({std::move(choice)}), UsageSoFar(job.delivery, e, /*opening=*/true),
               i == 0);
}

PendingResponse::Events StreamEvents(const Service& service, const JobPtr& job,
                                     const http::Responder& responder) {
  PendingResponse::Events events;
  events.on_news = [job, responder, &service](size_t i, const GenerationEvent& e,
                                              const Accumulated& a) {
    if (e.finish == FinishReason::kError) {
      responder.Write(http::SseEvent(
          http::ErrorBody(http::StatusOf(e.error_kind), RedactPaths(service, e.error))));
      return;
    }
    if (a.tokens.size() == e.tokens.size()) responder.Write(OpeningChunk(*job, i, e));
    Json delta = e.text.empty() ? Json::object() : Json{{"content", e.text}};
    Json choice = {{"index", i},
                   {"delta", std::move(delta)},
                   {"logprobs", Logprobs(*job, *service.model.tokenizer, e.output_logprobs)}};
    AddEnding(e, choice);
    if (job->delivery.token_ids) choice["token_ids"] = e.tokens;
    responder.Write(Chunk(*job, Json::array({std::move(choice)}), UsageSoFar(job->delivery, e)));
  };
  events.on_end = [job, responder](const std::vector<Accumulated>& all) {
    if (job->delivery.include_usage)
      responder.Write(Chunk(*job, Json::array(), Usage(all, job->delivery.n)));
    responder.Write(http::kSseDone);
    responder.EndStream();
  };
  return events;
}

Json FullChoice(const ChatJob& job, const Tokenizer& tokenizer, size_t i, const Accumulated& a) {
  Json choice = {{"index", i},
                 {"message", {{"role", "assistant"}, {"content", a.text}}},
                 {"logprobs", Logprobs(job, tokenizer, a.output_logprobs)}};
  AddEnding(a.last, choice);
  if (job.delivery.token_ids) choice["token_ids"] = a.tokens;
  return choice;
}

PendingResponse::Events FullResponseEvents(const Service& service, const JobPtr& job,
                                           const http::Responder& responder) {
  PendingResponse::Events events;
  events.on_end = [job, responder, &service](const std::vector<Accumulated>& all) {
    const Tokenizer& tokenizer = *service.model.tokenizer;
    Json choices = Json::array();
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].last.finish == FinishReason::kError)
        return responder.SendError(http::StatusOf(all[i].last.error_kind),
                                   RedactPaths(service, all[i].last.error));
      choices.push_back(FullChoice(*job, tokenizer, i, all[i]));
    }
    Json answer = Envelope(job->delivery, "chat.completion", std::move(choices));
    answer["usage"] = Usage(all, job->delivery.n);
    if (job->prompt_ids) answer["prompt_token_ids"] = job->specs[0].input_ids;
    if (job->logprobs.prompt_top >= 0)
      answer["prompt_logprobs"] =
          PromptLogprobs(tokenizer, all[0].input_logprobs, job->logprobs.prompt_top);
    responder.Send(200, http::kJson, Dump(answer));
  };
  return events;
}

WantedLogprobs ParseLogprobs(const Fields& f) {
  WantedLogprobs wanted{.output = f.Bool("logprobs", false)};
  if (f.Has("top_logprobs")) wanted.top = static_cast<int32_t>(f.Int("top_logprobs", 0, 0, 20));
  if (wanted.top > 0 && !wanted.output)
    throw InvalidField("top_logprobs", "top_logprobs wants logprobs: true");
  return wanted;
}

}  // namespace

std::shared_ptr<const ChatJob> ParseChat(const Service& service, const Json& body) {
  const Fields f(body);
  CheckModel(service, f);
  CheckFields(f, RequestKind::kChat, service.unknown_fields);
  auto job = std::make_shared<ChatJob>();
  job->delivery = ParseDelivery(service, f, "chatcmpl");
  job->prompt_ids = job->delivery.token_ids || f.Bool("return_prompt_token_ids", false);
  // Without a limit a chat may fill the context; the front cuts it to what is left.
  GenerationSpec spec;
  ParseSampling(service, f, std::numeric_limits<int32_t>::max(), &spec);
  if (job->delivery.stream) spec.stream_interval = service.args.stream_interval;
  job->logprobs = ParseLogprobs(f);
  ParsePromptLogprobs(service, f, /*echo=*/false, &job->logprobs, &spec);
  ParseRequestId(f, f.Has("rid") ? "rid" : "request_id", 0, 1, &spec);
  spec.cache_salt = ParseCacheSalt(f, 0, 1);
  const bool ids = f.Has("input_ids");
  if (!ids) CheckChatRoles(f);
  spec.input_ids =
      ids ? f.Ids("input_ids") : ChatPrompt(service.model, body, PromptLimit(service, f));
  TruncatePrompt(service, f, spec, spec.input_ids);
  const ClientNames names = ClientNamesOf(
      f, ids ? "input_ids" : "messages",
      job->logprobs.prompt_top > job->logprobs.top ? "prompt_logprobs" : "top_logprobs");
  AddCopies(service.front, std::move(spec), job->delivery.n, names, job->specs);
  return job;
}

void HandleChat(Service& service, const http::Request& request, const http::Responder& responder) {
  const JobPtr job = ParseChat(service, ParseBody(request));
  const bool stream = job->delivery.stream;
  PendingResponse::Start(
      service, job->specs, stream, responder,
      stream ? StreamEvents(service, job, responder) : FullResponseEvents(service, job, responder));
}

}  // namespace switchyard::openai
