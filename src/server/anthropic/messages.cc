#include "server/anthropic/messages.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/api/chat_output.h"
#include "server/api/guarded.h"
#include "server/api/pending_response.h"
#include "server/api/request_fields.h"
#include "server/http/error_body.h"
#include "server/http/responses.h"
#include "server/openai/openai.h"

namespace switchyard::anthropic {
namespace {

using JobPtr = std::shared_ptr<const openai::ChatJob>;
using RequestPtr = std::shared_ptr<const http::Request>;

// The state of one response.
struct Message {
  Message(JobPtr chat, MessageBlocks::Sink sink) : job(std::move(chat)), blocks(std::move(sink)) {
    if (job->output) output.emplace(*job->output);
  }

  void Push(const std::string& text, const std::vector<uint32_t>& token_ends, FinishReason finish) {
    if (output) {
      blocks.Add(output->Push(text, token_ends, finish));
    } else if (!text.empty()) {
      blocks.Add({{.kind = OutputEvent::Kind::kContent, .call = -1, .text = text, .call_id = {}}});
    }
    if (finish != FinishReason::kNone) blocks.Finish();
  }

  const JobPtr job;
  std::optional<ChatOutput> output;  // absent: all text is content
  MessageBlocks blocks;
};

std::string SseEvent(const char* type, const Json& members) {
  Json event = {{"type", type}};
  event.update(members);
  return fmt::format("event: {}\n", type) + http::SseEvent(Dump(event));
}

Json UsageOf(const GenerationEvent& last, bool opening) {
  return {{"input_tokens", last.prompt_tokens - last.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", last.cached_tokens},
          {"output_tokens", opening ? 0 : last.completion_tokens}};
}

// The members stop_reason and stop_sequence of a message that has ended.
Json EndingOf(const GenerationEvent& last, bool calls) {
  Json reason = "end_turn", sequence = nullptr;
  if (last.finish == FinishReason::kLength) {
    reason = "max_tokens";
  } else if (const auto* stop = std::get_if<std::string>(&last.matched)) {
    reason = "stop_sequence";
    sequence = *stop;
  } else if (calls) {
    reason = "tool_use";
  }
  return {{"stop_reason", std::move(reason)}, {"stop_sequence", std::move(sequence)}};
}

Json EnvelopeOf(const openai::ChatJob& job, Json content, Json usage) {
  return {{"id", job.delivery.id},         {"type", "message"},
          {"role", "assistant"},           {"model", job.delivery.model},
          {"content", std::move(content)}, {"stop_reason", nullptr},
          {"stop_sequence", nullptr},      {"usage", std::move(usage)}};
}

// Aborted generations are an error, because the API has no stop reason for them.
bool IsFailure(const GenerationEvent& e) {
  return e.finish == FinishReason::kError || e.finish == FinishReason::kAbort;
}

std::string FailureOf(const Service& service, const GenerationEvent& e) {
  return e.error.empty() ? "the request was aborted" : RedactPaths(service, e.error);
}

PendingResponse::Events StreamEvents(const Service& service, const JobPtr& job,
                                     const http::Responder& responder) {
  const auto message =
      std::make_shared<Message>(job, [responder](const char* type, const Json& members) {
        responder.Write(SseEvent(type, members));
      });
  PendingResponse::Events events{.response_id = job->delivery.id};
  events.on_news = [message, responder, &service](size_t, const GenerationEvent& e,
                                                  const Accumulated& a) {
    if (IsFailure(e)) {
      // For a router, which repeats a request that has ended with 500 or more.
      const int code = e.finish == FinishReason::kAbort ? 499 : http::StatusOf(e.error_kind);
      const Json error = {{"type", "api_error"}, {"message", FailureOf(service, e)}};
      responder.Write(SseEvent("error", Json::object({{"code", code}, {"error", error}})));
      return;
    }
    if (a.tokens.size() == e.tokens.size()) {
      Json envelope = EnvelopeOf(*message->job, Json::array(), UsageOf(e, /*opening=*/true));
      responder.Write(SseEvent("message_start", Json::object({{"message", std::move(envelope)}})));
    }
    message->Push(e.text, e.token_ends, e.finish);
    if (!e.finished()) return;
    const bool calls = message->output && message->output->has_calls();
    responder.Write(
        SseEvent("message_delta", {{"delta", EndingOf(e, calls)}, {"usage", UsageOf(e, false)}}));
    responder.Write(SseEvent("message_stop", Json::object()));
  };
  events.on_end = [responder](const std::vector<Accumulated>&) { responder.EndStream(); };
  return events;
}

PendingResponse::Events FullResponseEvents(const Service& service, const JobPtr& job,
                                           const http::Responder& responder) {
  PendingResponse::Events events{.response_id = job->delivery.id};
  events.on_end = [job, responder, &service](const std::vector<Accumulated>& all) {
    const Accumulated& a = all[0];
    if (a.last.finish == FinishReason::kError)
      return responder.SendError(http::StatusOf(a.last.error_kind), FailureOf(service, a.last));
    if (IsFailure(a.last)) return responder.SendError(500, FailureOf(service, a.last));
    Message message(job, nullptr);
    message.Push(a.text, a.token_ends, a.last.finish);
    Json answer = EnvelopeOf(*job, message.blocks.blocks(), UsageOf(a.last, false));
    answer.update(EndingOf(a.last, message.output && message.output->has_calls()));
    responder.Send(200, http::kJson, DumpExact(answer));
  };
  return events;
}

JobPtr ParseMessages(const Service& service, const Fields& f) {
  try {
    return openai::ParseChat(service, ChatBodyOf(f), "msg_");
  } catch (const RequestError& e) {
    const char* format = f.Has("output_config") ? "output_config.format" : "output_format";
    throw Renamed(Renamed(e, "response_format.json_schema", format), "response_format", format);
  }
}

void HandleMessages(Service& service, const http::Request& request,
                    const http::Responder& responder) {
  service.front.CheckTask(/*pooled=*/false);
  const Json body = ParseBody(request);
  const Fields f(body);
  CheckModel(service, f);
  CheckFields(f, RequestKind::kMessages, service.unknown_fields);
  if (!f.Has("max_tokens")) throw InvalidField("max_tokens", "max_tokens is missing");
  const JobPtr job = ParseMessages(service, f);
  const bool stream = job->delivery.stream;
  PendingResponse::Start(
      service, job->specs, stream, responder,
      stream ? StreamEvents(service, job, responder) : FullResponseEvents(service, job, responder));
}

void HandleCountTokens(const Service& service, const http::Request& request,
                       const http::Responder& responder) {
  const Json body = ParseBody(request);
  const Fields f(body);
  CheckModel(service, f);
  CheckFields(f, RequestKind::kMessages, service.unknown_fields);
  const size_t count = ChatPrompt(service.model, ChatBodyOf(f)).ids.size();
  responder.Send(200, http::kJson, Dump(Json::object({{"input_tokens", count}})));
}

}  // namespace

void Register(http::Server& server, Service& service) {
  server.Route("POST", "/v1/messages",
               Guarded(service, [&service](const RequestPtr& r, const http::Responder& out) {
                 HandleMessages(service, *r, out);
               }));
  server.Route("POST", "/v1/messages/count_tokens",
               Guarded(service, [&service](const RequestPtr& r, const http::Responder& out) {
                 HandleCountTokens(service, *r, out);
               }));
}

}  // namespace switchyard::anthropic
