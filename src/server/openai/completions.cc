#include "server/openai/completions.h"

#include <cmath>

#include "server/api/copies.h"
#include "server/api/flight.h"
#include "server/http/error_body.h"
#include "server/http/sse.h"
#include "server/openai/common.h"
#include "text/jinja/utf8.h"

namespace switchyard::openai {

// What a body asks for. Generations are ordered prompt by prompt, n copies of each.
struct CompletionJob {
  std::string id = NewId("cmpl");
  int64_t created = Now();
  std::string model;
  Delivery delivery;
  bool echo = false;
  std::vector<std::string> prompts;  // their text, for echo
  std::vector<GenerationSpec> specs;
};

namespace {

using jinja::CountCodePoints;

constexpr int32_t kDefaultMaxTokens = 16;  // OpenAI's default of this endpoint

// A string, a list of strings, a list of ids, or a list of such lists.
std::vector<std::vector<int32_t>> ParsePrompts(const Tokenizer& tokenizer, const Fields& f) {
  const Json* prompt = f.Find("prompt");
  if (!prompt) throw Invalid("prompt is missing");
  std::vector<std::vector<int32_t>> prompts;
  if (prompt->is_array() && !prompt->empty() && prompt->front().is_number()) {
    prompts.push_back(ToIds(*prompt, "prompt"));
  } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_array()) {
    for (const Json& list : *prompt) prompts.push_back(ToIds(list, "prompt"));
  } else {
    for (const std::string& text : f.Strings("prompt"))
      prompts.push_back(tokenizer.Encode(text, true));
  }
  if (prompts.empty()) throw Invalid("prompt is an empty list");
  return prompts;
}

// OpenAI's older form: parallel lists. Offsets count characters of the text that the choice shows.
class LogprobLists {
 public:
  explicit LogprobLists(const Tokenizer& tokenizer, size_t offset)
      : tokenizer_(tokenizer), offset_(offset) {}

  void Add(const std::vector<PositionLogprobs>& positions) {
    for (const PositionLogprobs& p : positions) {
      const std::string text = tokenizer_.TokenText(p.token);
      tokens_.push_back(text);
      logprobs_.push_back(std::isnan(p.logprob) ? Json(nullptr) : Json(p.logprob));
      offsets_.push_back(offset_);
      offset_ += CountCodePoints(text);
      Json top = Json::object();
      for (const TokenLogprob& t : p.top) top[tokenizer_.TokenText(t.token)] = t.logprob;
      top_.push_back(std::isnan(p.logprob) ? Json(nullptr) : std::move(top));
    }
  }
  Json Take() {
    return {{"text_offset", offsets_},
            {"token_logprobs", logprobs_},
            {"tokens", tokens_},
            {"top_logprobs", top_}};
  }

 private:
  const Tokenizer& tokenizer_;
  size_t offset_;
  Json tokens_ = Json::array(), logprobs_ = Json::array(), offsets_ = Json::array(),
       top_ = Json::array();
};

Json Choice(size_t index, std::string text, Json logprobs, const GenerationEvent& event) {
  Json choice = {{"index", index}, {"text", std::move(text)}, {"logprobs", std::move(logprobs)}};
  AddEnding(event, choice);
  return choice;
}

Json Envelope(const CompletionJob& job, Json choices) {
  return {{"id", job.id},
          {"object", "text_completion"},
          {"created", job.created},
          {"model", job.model},
          {"choices", std::move(choices)}};
}

Json WholeChoice(const CompletionJob& job, const Tokenizer& tokenizer, size_t i,
                 const Accumulated& a) {
  Json logprobs;
  if (job.specs[i].logprob.enabled) {
    LogprobLists lists(tokenizer, 0);
    if (job.echo) lists.Add(a.input_logprobs);
    lists.Add(a.output_logprobs);
    logprobs = lists.Take();
  }
  const std::string echo = job.echo ? job.prompts[i / job.delivery.n] : "";
  return Choice(i, echo + a.text, std::move(logprobs), a.last);
}

Json ChunkChoice(const CompletionJob& job, const Tokenizer& tokenizer, size_t i,
                 const GenerationEvent& e, const Accumulated& a) {
  const bool first = a.tokens.size() == e.tokens.size();
  Json logprobs;
  if (job.specs[i].logprob.enabled) {
    size_t shown =
        CountCodePoints(std::string_view(a.text).substr(0, a.text.size() - e.text.size()));
    if (job.echo && !first) shown += CountCodePoints(job.prompts[i / job.delivery.n]);
    LogprobLists lists(tokenizer, shown);
    if (job.echo && first) lists.Add(e.input_logprobs);
    lists.Add(e.output_logprobs);
    logprobs = lists.Take();
  }
  const std::string echo = job.echo && first ? job.prompts[i / job.delivery.n] : "";
  return Choice(i, echo + e.text, std::move(logprobs), e);
}

}  // namespace

std::shared_ptr<const CompletionJob> ParseCompletion(const Service& service, const Json& body) {
  const Fields f(body);
  CheckModel(service, f);
  f.Refuse("suffix", "is not supported");
  auto job = std::make_shared<CompletionJob>();
  job->model = service.model.name;
  job->delivery = ParseDelivery(f);
  job->echo = f.Bool("echo", false);
  GenerationSpec spec;
  ParseSampling(service, f, kDefaultMaxTokens, &spec);
  spec.stream_interval = job->delivery.stream ? service.args.stream_interval : spec.stream_interval;
  if (f.Has("logprobs")) {
    spec.logprob.enabled = true;
    spec.logprob.top = static_cast<int32_t>(f.Int("logprobs", 0, 0, 20));
    if (job->echo) spec.logprob.start = 0;
  }
  for (auto& ids : ParsePrompts(*service.model.tokenizer, f)) {
    if (job->echo)
      job->prompts.push_back(service.model.tokenizer->Decode(ids, spec.skip_special_tokens));
    spec.input_ids = std::move(ids);
    AddCopies(service.front, spec, job->delivery.n, job->specs);
  }
  return job;
}

void HandleCompletions(Service& service, const http::Request& request,
                       const http::Responder& responder) {
  const auto job = ParseCompletion(service, ParseBody(request));
  const Tokenizer& tokenizer = *service.model.tokenizer;
  Flight::Events events;
  if (job->delivery.stream) {
    events.on_news = [job, responder, &tokenizer](size_t i, const GenerationEvent& e,
                                                  const Accumulated& a) {
      if (e.finish == FinishReason::kError) {
        responder.Write(http::SseEvent(http::ErrorBody(http::StatusOf(e.error_kind), e.error)));
        return;
      }
      Json chunk = Envelope(*job, Json::array({ChunkChoice(*job, tokenizer, i, e, a)}));
      if (job->delivery.include_usage) chunk["usage"] = nullptr;
      responder.Write(http::SseEvent(Dump(chunk)));
    };
    events.on_end = [job, responder](const std::vector<Accumulated>& all) {
      if (job->delivery.include_usage) {
        Json chunk = Envelope(*job, Json::array());
        chunk["usage"] = Usage(all, job->delivery.n);
        responder.Write(http::SseEvent(Dump(chunk)));
      }
      responder.Write(http::kSseDone);
      responder.EndStream();
    };
  } else {
    events.on_end = [job, responder, &tokenizer](const std::vector<Accumulated>& all) {
      Json choices = Json::array();
      for (size_t i = 0; i < all.size(); ++i) {
        if (all[i].last.finish == FinishReason::kError)
          return responder.SendError(http::StatusOf(all[i].last.error_kind), all[i].last.error);
        choices.push_back(WholeChoice(*job, tokenizer, i, all[i]));
      }
      Json answer = Envelope(*job, std::move(choices));
      answer["usage"] = Usage(all, job->delivery.n);
      responder.Send(200, http::kJson, Dump(answer));
    };
  }
  Flight::Start(service, job->specs, job->delivery.stream, responder, std::move(events));
}

}  // namespace switchyard::openai
