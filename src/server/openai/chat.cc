#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/api/guarded.h"
#include "server/api/pending_response.h"
#include "server/http/error_body.h"
#include "server/http/responses.h"
#include "server/openai/common.h"
#include "server/openai/openai.h"
#include "server/openai/response_parts.h"

namespace switchyard::openai {
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

// Number of reasoning tokens in the usage. nullopt if reasoning is not separated.
std::optional<int64_t> ReasoningTokens(const ChatJob& job, int64_t count) {
  if (!job.output || !job.output->separate_reasoning) return std::nullopt;
  return count;
}

// Returns an event of choice i that precedes the first token of the choice.
std::string EarlyChunk(const ChatJob& job, size_t i, const GenerationEvent& e, Json delta,
                       const Json& more) {
  Json choice = {{"index", i},
                 {"delta", std::move(delta)},
                 {"logprobs", nullptr},
                 {"finish_reason", nullptr},
                 {"matched_stop", nullptr}};
  return StreamEvent(job.delivery, Json::array({std::move(choice)}),
                     UsageSoFar(job.delivery, e, /*opening=*/true, ReasoningTokens(job, 0)), more);
}

// Sends the events of choice i that precede its tokens: the role, and the echoed text.
void WriteOpening(const ChatJob& job, size_t i, const GenerationEvent& e,
                  const http::Responder& responder) {
  responder.Write(EarlyChunk(job, i, e, {{"role", "assistant"}, {"content", ""}},
                             i == 0 ? PromptMembers(job) : Json::object()));
  if (!job.echo.empty())
    responder.Write(EarlyChunk(job, i, e, {{"content", job.echo}}, Json::object()));
}

// Sends the new text of choice i as content.
void WriteText(const ChatJob& job, const Tokenizer& tokenizer, size_t i, const GenerationEvent& e,
               const http::Responder& responder) {
  Json delta = e.text.empty() ? Json::object() : Json{{"content", e.text}};
  Json choice = {{"index", i},
                 {"delta", std::move(delta)},
                 {"logprobs", Logprobs(job, tokenizer, e.output_logprobs)}};
  AddEnding(e, choice);
  if (job.delivery.token_ids) choice["token_ids"] = e.tokens;
  responder.Write(
      StreamEvent(job.delivery, Json::array({std::move(choice)}), UsageSoFar(job.delivery, e)));
}

// Sends the new text of choice i, parsed into reasoning, content and calls, as several events. The
// first of these events has the log-probabilities and the ids of all new tokens. The last one has
// the finish reason.
void WriteParts(const ChatJob& job, const Tokenizer& tokenizer, size_t i, const GenerationEvent& e,
                ChatOutput& output, const http::Responder& responder) {
  std::vector<Json> deltas = DeltasOf(output.Push(e.text, e.token_ends, e.finish));
  const bool other_news = e.finished() || job.logprobs.output || job.delivery.token_ids ||
                          job.delivery.continuous_usage;
  // Nothing to send, because the parser holds the text back.
  if (deltas.empty() && !other_news) return;
  if (deltas.empty()) deltas.push_back(Json::object());
  const Json usage = UsageSoFar(job.delivery, e, /*opening=*/false,
                                ReasoningTokens(job, output.reasoning_tokens()));
  for (size_t d = 0; d < deltas.size(); ++d) {
    const bool first = d == 0, last = d + 1 == deltas.size();
    Json choice = {{"index", i},
                   {"delta", std::move(deltas[d])},
                   {"logprobs", first ? Logprobs(job, tokenizer, e.output_logprobs) : Json()}};
    if (last) {
      AddEnding(e, choice, output.has_calls());
    } else {
      AddEnding(GenerationEvent(), choice);
    }
    if (job.delivery.token_ids) choice["token_ids"] = first ? Json(e.tokens) : Json::array();
    responder.Write(StreamEvent(job.delivery, Json::array({std::move(choice)}), usage));
  }
}

// The parsers of a job's choices. Empty if outputs are not parsed.
std::vector<std::unique_ptr<ChatOutput>> Outputs(const ChatJob& job) {
  std::vector<std::unique_ptr<ChatOutput>> outputs;
  for (size_t i = 0; job.output && i < job.specs.size(); ++i)
    outputs.push_back(std::make_unique<ChatOutput>(*job.output));
  return outputs;
}

PendingResponse::Events StreamEvents(const Service& service, const JobPtr& job,
                                     const http::Responder& responder) {
  PendingResponse::Events events{.text_bytes = RepeatedBytes(*job),
                                 .response_id = job->delivery.id};
  const auto outputs = std::make_shared<std::vector<std::unique_ptr<ChatOutput>>>(Outputs(*job));
  events.on_news = [job, responder, outputs, &service](size_t i, const GenerationEvent& e,
                                                       const Accumulated& a) {
    if (e.finish == FinishReason::kError) {
      responder.Write(http::SseEvent(
          http::ErrorBody(http::StatusOf(e.error_kind), RedactPaths(service, e.error))));
      return;
    }
    if (a.tokens.size() == e.tokens.size()) WriteOpening(*job, i, e, responder);
    const Tokenizer& tokenizer = *service.model.tokenizer;
    if (outputs->empty()) return WriteText(*job, tokenizer, i, e, responder);
    WriteParts(*job, tokenizer, i, e, *(*outputs)[i], responder);
  };
  events.on_end = [job, responder, outputs](const std::vector<Accumulated>& all) {
    if (const Json ext = SglExt(job->delivery, all); !ext.is_null())
      responder.Write(StreamEvent(job->delivery, Json::array(), nullptr, {{"sglext", ext}}));
    if (job->delivery.include_usage) {
      int64_t reasoning = 0;
      for (const auto& output : *outputs) reasoning += output->reasoning_tokens();
      responder.Write(StreamEvent(job->delivery, Json::array(),
                                  Usage(all, job->delivery.n, ReasoningTokens(*job, reasoning))));
    }
    responder.Write(http::kSseDone);
    responder.EndStream();
  };
  return events;
}

// Choice i of a response without streaming. Adds its reasoning tokens to `reasoning`.
Json FullChoice(const ChatJob& job, const Tokenizer& tokenizer, size_t i, const Accumulated& a,
                int64_t* reasoning) {
  Json message;
  bool calls = false;
  if (job.output) {
    ChatOutput output(*job.output);
    message = MessageOf(*job.output, output.Push(a.text, a.token_ends, a.last.finish), job.echo);
    calls = output.has_calls();
    *reasoning += output.reasoning_tokens();
  } else {
    message = {{"role", "assistant"}, {"content", job.echo + a.text}};
  }
  Json choice = {{"index", i},
                 {"message", std::move(message)},
                 {"logprobs", Logprobs(job, tokenizer, a.output_logprobs)}};
  AddEnding(a.last, choice, calls);
  if (job.delivery.token_ids) choice["token_ids"] = a.tokens;
  return choice;
}

PendingResponse::Events FullResponseEvents(const Service& service, const JobPtr& job,
                                           const http::Responder& responder) {
  PendingResponse::Events events{.text_bytes = RepeatedBytes(*job),
                                 .response_id = job->delivery.id};
  events.on_end = [job, responder, &service](const std::vector<Accumulated>& all) {
    const Tokenizer& tokenizer = *service.model.tokenizer;
    Json choices = Json::array();
    int64_t reasoning = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].last.finish == FinishReason::kError)
        return responder.SendError(http::StatusOf(all[i].last.error_kind),
                                   RedactPaths(service, all[i].last.error));
      choices.push_back(FullChoice(*job, tokenizer, i, all[i], &reasoning));
    }
    Json answer = Envelope(job->delivery, "chat.completion", std::move(choices));
    answer["usage"] = Usage(all, job->delivery.n, ReasoningTokens(*job, reasoning));
    answer.update(PromptMembers(*job));
    if (Json ext = SglExt(job->delivery, all); !ext.is_null()) answer["sglext"] = std::move(ext);
    answer["prompt_logprobs"] =
        job->logprobs.prompt_top < 0
            ? Json()
            : PromptLogprobs(tokenizer, all[0].input_logprobs, job->logprobs.prompt_top);
    responder.Send(200, http::kJson, Dump(answer));
  };
  return events;
}

}  // namespace

void HandleChat(Service& service, const http::Request& request, const http::Responder& responder) {
  service.front.CheckTask(/*pooled=*/false);
  const JobPtr job = ParseChat(service, ParseBody(request));
  const bool stream = job->delivery.stream;
  PendingResponse::Start(
      service, job->specs, stream, responder,
      stream ? StreamEvents(service, job, responder) : FullResponseEvents(service, job, responder));
}

}  // namespace switchyard::openai
