#include "server/api/grammar_fields.h"
#include "server/api/guarded.h"
#include "server/api/pending_response.h"
#include "server/api/request_fields.h"
#include "server/http/error_body.h"
#include "server/http/responses.h"
#include "server/openai/common.h"
#include "server/openai/openai.h"
#include "server/openai/response_parts.h"

namespace switchyard::openai {

// Parsed request body. `specs` has the n copies of prompt 0, then those of prompt 1, and so on.
struct CompletionJob {
  Delivery delivery;
  WantedLogprobs logprobs;
  bool echo = false;
  std::vector<PromptText> prompts;  // text and offsets of each prompt, for `echo`
  std::vector<GenerationSpec> specs;
};

namespace {

using JobPtr = std::shared_ptr<const CompletionJob>;

constexpr int32_t kDefaultMaxTokens = 16;  // OpenAI's default for this endpoint

struct Prompt {
  std::vector<int32_t> ids;
  std::optional<std::string> text;  // the client's text, unchanged; absent if the client sent ids
};

// Parses `prompt`: a string, a list of strings, a list of ids, or a list of such lists.
std::vector<Prompt> ParsePrompts(const Service& service, const Fields& f, int32_t copies) {
  const Json* prompt = f.Find("prompt");
  if (!prompt) throw InvalidField("prompt", "prompt is missing");
  std::vector<Prompt> prompts;
  if (prompt->is_array() && !prompt->empty() && prompt->front().is_number()) {
    prompts.push_back({ToIds(*prompt, "prompt"), {}});
  } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_array()) {
    for (const Json& list : *prompt) prompts.push_back({ToIds(list, "prompt"), {}});
  } else {
    const bool special = f.Bool("add_special_tokens", true);
    std::vector<std::string> texts = f.Strings("prompt");
    service.front.CheckCapacity(texts.size() * copies);
    for (std::string& text : texts) {
      std::vector<int32_t> ids =
          service.model.tokenizer->Encode(text, special, PromptLimit(service, f));
      prompts.push_back({std::move(ids), std::move(text)});
    }
  }
  if (prompts.empty()) throw InvalidField("prompt", "prompt is an empty list");
  return prompts;
}

const PromptText& PromptOf(const CompletionJob& job, size_t i) {
  return job.prompts[i / job.delivery.n];
}

// Log-probabilities of `positions`. `offsets` are relative to the end of the echoed prompt.
// `input`: log-probabilities of the prompt to put first, or nullptr.
Json Logprobs(const CompletionJob& job, const Tokenizer& tokenizer, size_t i,
              const std::vector<PositionLogprobs>* input,
              const std::vector<PositionLogprobs>& positions, const std::vector<int64_t>& offsets) {
  if (!job.logprobs.output) return nullptr;
  CompletionLogprobs lists({tokenizer, job.logprobs.as_ids}, job.logprobs.top);
  if (input) lists.Add(*input, PromptOf(job, i).offsets, 0);
  lists.Add(positions, offsets, job.echo ? PromptOf(job, i).length : 0);
  return lists.Take();
}

void AddTokenIds(const CompletionJob& job, size_t i, const std::vector<int32_t>& tokens, bool first,
                 Json& choice) {
  if (!job.delivery.token_ids) return;
  choice["token_ids"] = tokens;
  if (first) choice["prompt_token_ids"] = job.specs[i].input_ids;
}

Json FullChoice(const CompletionJob& job, const Tokenizer& tokenizer, size_t i,
                const Accumulated& a) {
  Json choice = {{"index", i},
                 {"text", (job.echo ? PromptOf(job, i).text : "") + a.text},
                 {"logprobs", Logprobs(job, tokenizer, i, job.echo ? &a.input_logprobs : nullptr,
                                       a.output_logprobs, a.token_offsets)}};
  AddEnding(a.last, choice);
  AddTokenIds(job, i, a.tokens, true, choice);
  choice["prompt_logprobs"] =
      job.logprobs.prompt_top < 0
          ? Json()
          : PromptLogprobs(tokenizer, a.input_logprobs, job.logprobs.prompt_top);
  return choice;
}

Json ChunkChoice(const CompletionJob& job, const Tokenizer& tokenizer, size_t i,
                 const GenerationEvent& e, const Accumulated& a) {
  const bool first = a.tokens.size() == e.tokens.size();
  const bool echo = job.echo && first;
  Json choice = {{"index", i},
                 {"text", (echo ? PromptOf(job, i).text : "") + e.text},
                 {"logprobs", Logprobs(job, tokenizer, i, echo ? &e.input_logprobs : nullptr,
                                       e.output_logprobs, e.token_offsets)}};
  AddEnding(e, choice);
  AddTokenIds(job, i, e.tokens, first, choice);
  return choice;
}

// Bytes of the prompts in the response.
size_t EchoedBytes(const CompletionJob& job) {
  size_t bytes = 0;
  for (const PromptText& prompt : job.prompts) bytes += prompt.text.size() * job.delivery.n;
  return bytes;
}

PendingResponse::Events StreamEvents(const Service& service, const JobPtr& job,
                                     const http::Responder& responder) {
  PendingResponse::Events events{.text_bytes = EchoedBytes(*job), .response_id = job->delivery.id};
  events.on_news = [job, responder, &service](size_t i, const GenerationEvent& e,
                                              const Accumulated& a) {
    if (e.finish == FinishReason::kError) {
      responder.Write(http::SseEvent(
          http::ErrorBody(http::StatusOf(e.error_kind), RedactPaths(service, e.error))));
      return;
    }
    Json choices = Json::array({ChunkChoice(*job, *service.model.tokenizer, i, e, a)});
    responder.Write(StreamEvent(job->delivery, std::move(choices), UsageSoFar(job->delivery, e)));
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

PendingResponse::Events FullResponseEvents(const Service& service, const JobPtr& job,
                                           const http::Responder& responder) {
  PendingResponse::Events events{.text_bytes = EchoedBytes(*job), .response_id = job->delivery.id};
  events.on_end = [job, responder, &service](const std::vector<Accumulated>& all) {
    Json choices = Json::array();
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].last.finish == FinishReason::kError)
        return responder.SendError(http::StatusOf(all[i].last.error_kind),
                                   RedactPaths(service, all[i].last.error));
      choices.push_back(FullChoice(*job, *service.model.tokenizer, i, all[i]));
    }
    Json answer = Envelope(job->delivery, "text_completion", std::move(choices));
    answer["usage"] = Usage(all, job->delivery.n);
    if (Json ext = SglExt(job->delivery, all); !ext.is_null()) answer["sglext"] = std::move(ext);
    responder.Send(200, http::kJson, Dump(answer));
  };
  return events;
}

// Reads `logprobs`. The value false means no log-probabilities, as in the chat API.
WantedLogprobs ParseLogprobs(const Fields& f) {
  const Json* logprobs = f.Find("logprobs");
  if (!logprobs || *logprobs == false) return {};
  return {.output = true, .top = static_cast<int32_t>(f.Int("logprobs", 0, 0, 20))};
}

}  // namespace

std::shared_ptr<const CompletionJob> ParseCompletion(const Service& service, const Json& body) {
  const Fields f(body);
  CheckModel(service, f);
  CheckFields(f, RequestKind::kCompletion, service.unknown_fields);
  const Tokenizer& tokenizer = *service.model.tokenizer;
  auto job = std::make_shared<CompletionJob>();
  job->delivery = ParseDelivery(service, f, "cmpl-", "text_completion");
  job->echo = f.Bool("echo", false);
  job->logprobs = ParseLogprobs(f);
  GenerationSpec spec;
  ParseSampling(service, f, kDefaultMaxTokens, &spec);
  ParseGrammar(service, f, &spec);
  if (job->delivery.stream) spec.stream_interval = service.args.stream_interval;
  ParsePromptLogprobs(service, f, job->echo, &job->logprobs, &spec);
  const ClientNames names = ClientNamesOf(
      f, "prompt", job->logprobs.prompt_top > job->logprobs.top ? "prompt_logprobs" : "logprobs");
  std::vector<Prompt> prompts = ParsePrompts(service, f, job->delivery.n);
  for (size_t i = 0; i < prompts.size(); ++i) {
    Prompt& prompt = prompts[i];
    if (TruncatePrompt(service, f, spec, prompt.ids)) prompt.text.reset();
    if (job->echo) {
      job->prompts.push_back(prompt.text ? PromptSentAsText(tokenizer, prompt.ids, *prompt.text)
                                         : PromptSentAsIds(tokenizer, prompt.ids));
    }
    GenerationSpec own = spec;
    ParseRequestId(f, f.Has("rid") ? "rid" : "request_id", i, prompts.size(), &own);
    own.cache_salt = ParseCacheSalt(f, i, prompts.size());
    own.input_ids = std::move(prompt.ids);
    AddCopies(service.front, std::move(own), job->delivery.n, names, job->specs);
  }
  return job;
}

void HandleCompletions(Service& service, const http::Request& request,
                       const http::Responder& responder) {
  service.front.CheckTask(/*pooled=*/false);
  const JobPtr job = ParseCompletion(service, ParseBody(request));
  const bool stream = job->delivery.stream;
  PendingResponse::Start(
      service, job->specs, stream, responder,
      stream ? StreamEvents(service, job, responder) : FullResponseEvents(service, job, responder));
}

}  // namespace switchyard::openai
