#include "server/openai/chat.h"

#include <limits>
#include <optional>
#include <string>
#include <utility>

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
  bool prompt_ids = false;                 // return_prompt_token_ids
  std::optional<std::string> prompt_text;  // return_prompt_text: output of the template
  std::string echo;                        // put before each answer
  std::vector<GenerationSpec> specs;       // the n copies
};

namespace {

using JobPtr = std::shared_ptr<const ChatJob>;

Json Logprobs(const ChatJob& job, const Tokenizer& tokenizer,
              const std::vector<PositionLogprobs>& positions) {
  if (!job.logprobs.output) return nullptr;
  return ChatLogprobs({tokenizer, job.logprobs.as_ids}, positions, job.logprobs.top);
}

// Members of a response, or of the first event of a stream, that describe the prompt.
Json PromptMembers(const ChatJob& job) {
  Json members = Json::object();
  if (job.prompt_ids) members["prompt_token_ids"] = job.specs[0].input_ids;
  if (job.prompt_text) members["prompt_text"] = *job.prompt_text;
  return members;
}

// Bytes of the prompt's text in the response.
size_t RepeatedBytes(const ChatJob& job) {
  return job.echo.size() * job.delivery.n + (job.prompt_text ? job.prompt_text->size() : 0);
}

// An event of choice i that precedes its first token.
std::string EarlyChunk(const ChatJob& job, size_t i, const GenerationEvent& e, Json delta,
                       const Json& more) {
  Json choice = {{"index", i},
                 {"delta", std::move(delta)},
                 {"logprobs", nullptr},
                 {"finish_reason", nullptr},
                 {"matched_stop", nullptr}};
  return StreamEvent(job.delivery, Json::array({std::move(choice)}),
                     UsageSoFar(job.delivery, e, /*opening=*/true), more);
}

// Sends the events of choice i that precede its tokens: the role, and the echoed text.
void WriteOpening(const ChatJob& job, size_t i, const GenerationEvent& e,
                  const http::Responder& responder) {
  responder.Write(EarlyChunk(job, i, e, {{"role", "assistant"}, {"content", ""}},
                             i == 0 ? PromptMembers(job) : Json::object()));
  if (!job.echo.empty())
    responder.Write(EarlyChunk(job, i, e, {{"content", job.echo}}, Json::object()));
}

PendingResponse::Events StreamEvents(const Service& service, const JobPtr& job,
                                     const http::Responder& responder) {
  PendingResponse::Events events{.text_bytes = RepeatedBytes(*job)};
  events.on_news = [job, responder, &service](size_t i, const GenerationEvent& e,
                                              const Accumulated& a) {
    if (e.finish == FinishReason::kError) {
      responder.Write(http::SseEvent(
          http::ErrorBody(http::StatusOf(e.error_kind), RedactPaths(service, e.error))));
      return;
    }
    if (a.tokens.size() == e.tokens.size()) WriteOpening(*job, i, e, responder);
    Json delta = e.text.empty() ? Json::object() : Json{{"content", e.text}};
    Json choice = {{"index", i},
                   {"delta", std::move(delta)},
                   {"logprobs", Logprobs(*job, *service.model.tokenizer, e.output_logprobs)}};
    AddEnding(e, choice);
    if (job->delivery.token_ids) choice["token_ids"] = e.tokens;
    responder.Write(
        StreamEvent(job->delivery, Json::array({std::move(choice)}), UsageSoFar(job->delivery, e)));
  };
  events.on_end = [job, responder](const std::vector<Accumulated>& all) {
    if (const Json ext = SglExt(job->delivery, all); !ext.is_null())
      responder.Write(StreamEvent(job->delivery, Json::array(), nullptr, {{"sglext", ext}}));
    if (job->delivery.include_usage)
      responder.Write(StreamEvent(job->delivery, Json::array(), Usage(all, job->delivery.n)));
    responder.Write(http::kSseDone);
    responder.EndStream();
  };
  return events;
}

Json FullChoice(const ChatJob& job, const Tokenizer& tokenizer, size_t i, const Accumulated& a) {
  Json choice = {{"index", i},
                 {"message", {{"role", "assistant"}, {"content", job.echo + a.text}}},
                 {"logprobs", Logprobs(job, tokenizer, a.output_logprobs)}};
  AddEnding(a.last, choice);
  if (job.delivery.token_ids) choice["token_ids"] = a.tokens;
  return choice;
}

PendingResponse::Events FullResponseEvents(const Service& service, const JobPtr& job,
                                           const http::Responder& responder) {
  PendingResponse::Events events{.text_bytes = RepeatedBytes(*job)};
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
    answer.update(PromptMembers(*job));
    if (Json ext = SglExt(job->delivery, all); !ext.is_null()) answer["sglext"] = std::move(ext);
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
    throw InvalidField("top_logprobs", "top_logprobs requires logprobs: true");
  return wanted;
}

// Reads the prompt and the parts of it that the response repeats.
void ParsePrompt(const Service& service, const Fields& f, ChatJob& job, GenerationSpec& spec) {
  if (f.Has("input_ids")) {
    CheckFieldsWithoutMessages(f);
    spec.input_ids = f.Ids("input_ids");
  } else {
    CheckChatRoles(f);
    RenderedPrompt prompt = ChatPrompt(service.model, f.object(), PromptLimit(service, f));
    spec.input_ids = std::move(prompt.ids);
    if (f.Bool("return_prompt_text", false)) job.prompt_text = std::move(prompt.text);
    if (f.Bool("echo", false)) job.echo = EchoedText(*f.Find("messages"));
  }
  TruncatePrompt(service, f, spec, spec.input_ids);
}

}  // namespace

std::shared_ptr<const ChatJob> ParseChat(const Service& service, const Json& body) {
  const Fields f(body);
  CheckModel(service, f);
  CheckFields(f, RequestKind::kChat, service.unknown_fields);
  auto job = std::make_shared<ChatJob>();
  job->delivery = ParseDelivery(service, f, "chatcmpl", "chat.completion.chunk");
  job->prompt_ids = job->delivery.token_ids || f.Bool("return_prompt_token_ids", false);
  // Without a token limit a chat may fill the context. The front reduces the limit to the tokens
  // that are left.
  GenerationSpec spec;
  ParseSampling(service, f, std::numeric_limits<int32_t>::max(), &spec);
  if (job->delivery.stream) spec.stream_interval = service.args.stream_interval;
  job->logprobs = ParseLogprobs(f);
  ParsePromptLogprobs(service, f, /*echo=*/false, &job->logprobs, &spec);
  ParseRequestId(f, f.Has("rid") ? "rid" : "request_id", 0, 1, &spec);
  spec.cache_salt = ParseCacheSalt(f, 0, 1);
  ParsePrompt(service, f, *job, spec);
  const ClientNames names = ClientNamesOf(
      f, f.Has("input_ids") ? "input_ids" : "messages",
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
