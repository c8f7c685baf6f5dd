#include "server/openai/chat.h"

#include <limits>

#include "server/api/chat_prompt.h"
#include "server/api/copies.h"
#include "server/api/flight.h"
#include "server/http/error_body.h"
#include "server/http/sse.h"
#include "server/openai/common.h"

namespace switchyard::openai {

struct ChatJob {
  std::string id = NewId("chatcmpl");
  int64_t created = Now();
  std::string model;
  Delivery delivery;
  std::vector<GenerationSpec> specs;  // the n copies
};

namespace {

Json TokenJson(const Tokenizer& tokenizer, int32_t token, float logprob) {
  const std::string text = tokenizer.TokenText(token);
  Json bytes = Json::array();
  for (unsigned char c : text) bytes.push_back(c);
  return {{"token", text}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

Json Logprobs(const ChatJob& job, const Tokenizer& tokenizer,
              const std::vector<PositionLogprobs>& positions) {
  if (!job.specs[0].logprob.enabled) return nullptr;
  Json content = Json::array();
  for (const PositionLogprobs& p : positions) {
    Json entry = TokenJson(tokenizer, p.token, p.logprob);
    Json top = Json::array();
    for (const TokenLogprob& t : p.top) top.push_back(TokenJson(tokenizer, t.token, t.logprob));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

Json Envelope(const ChatJob& job, const char* object, Json choices) {
  return {{"id", job.id},
          {"object", object},
          {"created", job.created},
          {"model", job.model},
          {"choices", std::move(choices)}};
}

std::string Chunk(const ChatJob& job, Json choices, Json usage = nullptr) {
  Json chunk = Envelope(job, "chat.completion.chunk", std::move(choices));
  if (job.delivery.include_usage) chunk["usage"] = std::move(usage);
  return http::SseEvent(Dump(chunk));
}

Flight::Events StreamEvents(const std::shared_ptr<const ChatJob>& job,
                            const http::Responder& responder, const Tokenizer& tokenizer) {
  Flight::Events events;
  events.on_news = [job, responder, &tokenizer](size_t i, const GenerationEvent& e,
                                                const Accumulated& a) {
    if (e.finish == FinishReason::kError) {
      responder.Write(http::SseEvent(http::ErrorBody(http::StatusOf(e.error_kind), e.error)));
      return;
    }
    if (a.tokens.size() == e.tokens.size()) {  // the first news open the message
      Json opening = {{"index", i},
                      {"delta", {{"role", "assistant"}, {"content", ""}}},
                      {"logprobs", nullptr},
                      {"finish_reason", nullptr}};
      responder.Write(Chunk(*job, Json::array({std::move(opening)})));
    }
    Json delta = e.text.empty() ? Json::object() : Json{{"content", e.text}};
    Json choice = {{"index", i},
                   {"delta", std::move(delta)},
                   {"logprobs", Logprobs(*job, tokenizer, e.output_logprobs)}};
    AddEnding(e, choice);
    responder.Write(Chunk(*job, Json::array({std::move(choice)})));
  };
  events.on_end = [job, responder](const std::vector<Accumulated>& all) {
    if (job->delivery.include_usage)
      responder.Write(Chunk(*job, Json::array(), Usage(all, job->delivery.n)));
    responder.Write(http::kSseDone);
    responder.EndStream();
  };
  return events;
}

Flight::Events WholeEvents(const std::shared_ptr<const ChatJob>& job,
                           const http::Responder& responder, const Tokenizer& tokenizer) {
  Flight::Events events;
  events.on_end = [job, responder, &tokenizer](const std::vector<Accumulated>& all) {
    Json choices = Json::array();
    for (size_t i = 0; i < all.size(); ++i) {
      const Accumulated& a = all[i];
      if (a.last.finish == FinishReason::kError)
        return responder.SendError(http::StatusOf(a.last.error_kind), a.last.error);
      Json choice = {{"index", i},
                     {"message", {{"role", "assistant"}, {"content", a.text}}},
                     {"logprobs", Logprobs(*job, tokenizer, a.output_logprobs)}};
      AddEnding(a.last, choice);
      choices.push_back(std::move(choice));
    }
    Json answer = Envelope(*job, "chat.completion", std::move(choices));
    answer["usage"] = Usage(all, job->delivery.n);
    responder.Send(200, http::kJson, Dump(answer));
  };
  return events;
}

}  // namespace

std::shared_ptr<const ChatJob> ParseChat(const Service& service, const Json& body) {
  const Fields f(body);
  CheckModel(service, f);
  auto job = std::make_shared<ChatJob>();
  job->model = service.model.name;
  job->delivery = ParseDelivery(f);
  // Without a limit a chat may fill the context; the front cuts it to what is left.
  GenerationSpec spec;
  ParseSampling(service, f, std::numeric_limits<int32_t>::max(), &spec);
  if (job->delivery.stream) spec.stream_interval = service.args.stream_interval;
  spec.logprob.enabled = f.Bool("logprobs", false);
  spec.logprob.top = static_cast<int32_t>(f.Int("top_logprobs", 0, 0, 20));
  if (spec.logprob.top > 0 && !spec.logprob.enabled)
    throw Invalid("top_logprobs wants logprobs: true");
  spec.input_ids = ChatPrompt(service.model, body);
  AddCopies(service.front, std::move(spec), job->delivery.n, job->specs);
  return job;
}

void HandleChat(Service& service, const http::Request& request, const http::Responder& responder) {
  const auto job = ParseChat(service, ParseBody(request));
  const Tokenizer& tokenizer = *service.model.tokenizer;
  const bool stream = job->delivery.stream;
  Flight::Start(
      service, job->specs, stream, responder,
      stream ? StreamEvents(job, responder, tokenizer) : WholeEvents(job, responder, tokenizer));
}

}  // namespace switchyard::openai
