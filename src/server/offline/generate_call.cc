#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "server/api/accumulated.h"
#include "server/native/native.h"
#include "server/offline/service.h"

namespace switchyard::offline {
namespace {

using Clock = std::chrono::steady_clock;

// Appends a row of `width` alternatives; missing ones are NaN and -1.
void AppendRow(const std::vector<TokenLogprob>& row, int64_t width, std::vector<float>& values,
               std::vector<int32_t>& tokens) {
  const auto count = std::min<size_t>(row.size(), width);
  for (size_t i = 0; i < count; ++i) {
    values.push_back(row[i].logprob);
    tokens.push_back(row[i].token);
  }
  values.resize(values.size() + width - count, std::numeric_limits<float>::quiet_NaN());
  tokens.resize(tokens.size() + width - count, -1);
}

Logprobs Flatten(const std::vector<PositionLogprobs>& positions, const LogprobParams& params) {
  Logprobs flat{.top = params.top, .requested = std::ssize(params.token_ids)};
  flat.values.reserve(positions.size());
  flat.tokens.reserve(positions.size());
  for (const PositionLogprobs& p : positions) {
    flat.values.push_back(p.logprob);
    flat.tokens.push_back(p.token);
    // The first position of a prompt has no alternatives either.
    const bool defined = !std::isnan(p.logprob);
    static const std::vector<TokenLogprob> kNone;
    AppendRow(defined ? p.top : kNone, flat.top, flat.top_values, flat.top_tokens);
    AppendRow(defined ? p.requested : kNone, flat.requested, flat.requested_values,
              flat.requested_tokens);
  }
  return flat;
}

// The state of a call. Shared by the caller's handle and by the front's callbacks, which run on the
// reader thread. `mutex` guards all members below it.
struct State {
  State(std::shared_ptr<Engine::Impl> owner, native::GenerateBody parsed,
        std::shared_ptr<Notifier> notifier)
      : engine(std::move(owner)),
        body(std::move(parsed)),
        news(std::move(notifier)),
        generations(body.specs.size()),
        open(body.specs.size()) {}

  void OnEvent(size_t index, const GenerationEvent& event);

  const std::shared_ptr<Engine::Impl> engine;
  const native::GenerateBody body;
  const Clock::time_point start = Clock::now();
  News news;

  struct Generation {
    Accumulated output;  // since the last result, or of the whole generation
    bool changed = false;
    bool prompt_returned = false;  // the prompt's log-probabilities are in an earlier result
    std::vector<int32_t> routed_experts;
  };
  std::mutex mutex;
  std::vector<Generation> generations;
  size_t open;
  std::optional<Error> failure;
};

void State::OnEvent(size_t index, const GenerationEvent& event) {
  const std::lock_guard lock(mutex);
  Generation& generation = generations[index];
  generation.output.Add(event);
  std::vector<int32_t>& routed = generation.output.routed_experts;
  generation.routed_experts.insert(generation.routed_experts.end(), routed.begin(), routed.end());
  routed.clear();
  generation.changed = true;
  if (event.finished()) --open;
  if (event.finish == FinishReason::kError && !failure)
    failure.emplace(event.error_kind, event.error);
  if (body.stream || open == 0 || failure) news.Set();
}

class OpenGenerate : public GenerateCall {
 public:
  explicit OpenGenerate(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~OpenGenerate() override { Abort(); }

  void Submit() {
    for (size_t i = 0; i < state_->body.specs.size(); ++i)
      ids_.push_back(state_->engine->front.Submit(
          state_->body.specs[i],
          [state = state_, i](const GenerationEvent& event) { state->OnEvent(i, event); }));
  }

  uint64_t number() const override { return state_->news.number(); }
  bool Wait(std::chrono::milliseconds timeout) override { return state_->news.Wait(timeout); }
  bool HasNews() const override { return state_->news.Has(); }
  bool single() const override { return state_->body.single; }
  bool done() const override { return done_; }

  void Abort() override {
    if (done_) return;
    done_ = true;
    state_->engine->front.Abort(ids_);
  }

  std::vector<Result> Take() override;

 private:
  Result MakeResult(size_t index);

  const std::shared_ptr<State> state_;
  std::vector<uint64_t> ids_;
  bool done_ = false;
};

std::vector<Result> OpenGenerate::Take() {
  std::optional<Error> failure;
  std::vector<Result> results;
  {
    const std::lock_guard lock(state_->mutex);
    state_->news.Clear();
    failure = state_->failure;
    const bool complete = state_->open == 0;
    if (!failure && (state_->body.stream || complete)) {
      for (size_t i = 0; i < state_->generations.size(); ++i)
        if (state_->generations[i].changed) results.push_back(MakeResult(i));
    }
    if (!failure && complete) done_ = true;
  }
  if (failure) {
    Abort();
    throw *failure;
  }
  return results;
}

// Requires the state's mutex.
Result OpenGenerate::MakeResult(size_t index) {
  const native::GenerateBody& body = state_->body;
  const GenerationSpec& spec = body.specs[index];
  State::Generation& generation = state_->generations[index];
  Accumulated& output = generation.output;
  generation.changed = false;
  const double seconds = std::chrono::duration<double>(Clock::now() - state_->start).count();
  Result result{.index = static_cast<int64_t>(index),
                .meta_info = Dump(native::MetaInfo(body, index, output, seconds)),
                .finished = output.last.finished()};
  if (spec.logprob.enabled) {
    if (!std::exchange(generation.prompt_returned, true))
      result.input_logprobs = Flatten(std::exchange(output.input_logprobs, {}), spec.logprob);
    result.output_logprobs = Flatten(output.output_logprobs, spec.logprob);
  }
  if (spec.routed_experts.enabled && result.finished) {
    const ModelConfig& config = state_->engine->plan.model;
    result.routed_experts = RoutedExperts{.ids = std::move(generation.routed_experts),
                                          .layers = config.num_layers(),
                                          .top_k = config.moe->router.top_k};
  }
  if (result.finished || body.segments) {
    result.text = std::exchange(output.text, {});
    result.output_ids = std::exchange(output.tokens, {});
    output.output_logprobs.clear();
  } else {
    result.text = output.text;
    result.output_ids = output.tokens;
  }
  return result;
}

// Unlike the server, which logs unknown fields, refuses them: they are misspelled arguments.
void RefuseUnknown(const Json& body) {
  RefuseUnknownFields(body, RequestKind::kGenerate);
  const auto params = body.find("sampling_params");
  if (params == body.end()) return;
  for (const Json& own : params->is_array() ? *params : Json::array({*params}))
    if (own.is_object()) RefuseUnknownFields(own, RequestKind::kSamplingParams);
}

}  // namespace

std::unique_ptr<GenerateCall> StartGenerate(std::shared_ptr<Engine::Impl> engine,
                                            const std::string& text,
                                            std::shared_ptr<Notifier> notifier) {
  engine->front.CheckTask(/*pooled=*/false);
  const Json body = ParseBody(text);
  RefuseUnknown(body);
  native::GenerateBody parsed = native::ParseGenerateBody(engine->service, body);
  auto call = std::make_unique<OpenGenerate>(
      std::make_shared<State>(std::move(engine), std::move(parsed), std::move(notifier)));
  call->Submit();
  return call;
}

}  // namespace switchyard::offline
