#include "server/front/front.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/log.h"
#include "server/front/open_generation.h"

namespace switchyard {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Limits the work per token: one thread matches every token of all requests with the stop strings.
constexpr size_t kMaxStopStrings = 64, kMaxStopBytes = 1024;

void CheckStops(const std::vector<std::string>& stops) {
  if (stops.size() > kMaxStopStrings)
    throw ParameterError(
        "stop", fmt::format("has {} strings, want at most {}", stops.size(), kMaxStopStrings));
  for (const std::string& stop : stops) {
    if (stop.empty() || stop.size() > kMaxStopBytes)
      throw ParameterError("stop", fmt::format("has a string of {} bytes, want 1 to {}",
                                               stop.size(), kMaxStopBytes));
  }
}

metrics::End EndOf(const GenerationEvent& event, bool overdue) {
  using metrics::End;
  switch (event.finish) {
    case FinishReason::kStop:
      return End::kStop;
    case FinishReason::kLength:
      return End::kLength;
    case FinishReason::kAbort:
      return End::kAbort;
    case FinishReason::kError:
    case FinishReason::kNone:
      break;
  }
  return overdue ? End::kTimeout : End::kError;
}

void CheckAlternatives(const GenerationSpec& spec) {
  if (CountPromptAlternatives(spec) > kMaxPromptAlternatives)
    throw ParameterError(
        "top_logprobs",
        fmt::format("requests log-probabilities of more than {} alternative tokens at prompt "
                    "positions: want fewer tokens per position, or a later start position",
                    kMaxPromptAlternatives));
}

}  // namespace

Front::Front(RankLink& link, const Tokenizer& tokenizer, Limits limits, DpController controller)
    : link_(link),
      tokenizer_(tokenizer),
      limits_(limits),
      metrics_(limits.context_length),
      controller_(std::move(controller)) {}
Front::~Front() = default;

void Front::CheckTask(bool pooled) const {
  const bool pools = limits_.pooling != Pooling::kNone;
  if (pooled == pools) return;
  throw Invalid("{}", pools ? "this model does not generate text: use POST /v1/embeddings, /score, "
                              "/rerank or /classify"
                            : "this model generates text, not embeddings or classes: want POST "
                              "/v1/completions, or a server started with --is-embedding");
}

void Front::Check(GenerationSpec& spec) const {
  CheckTransfer(spec);
  try {
    CheckFields(spec);
  } catch (const Error& error) {
    if (spec.kv) transfers_->Refuse(*spec.kv, error.what());  // the other server need not wait
    throw;
  }
}

void Front::CheckFields(GenerationSpec& spec) const {
  CheckTask(spec.pooled);
  Validate(spec.sampling, limits_.vocab_size);
  Validate(spec.logprob, limits_.vocab_size);
  CheckPrompt(spec.input_ids, spec.pooled);
  const auto length = static_cast<int64_t>(spec.input_ids.size());
  SamplingParams& sampling = spec.sampling;
  sampling.max_new_tokens =
      static_cast<int32_t>(std::min<int64_t>(sampling.max_new_tokens, longest() - length));
  sampling.min_new_tokens = std::min(sampling.min_new_tokens, sampling.max_new_tokens);
  CheckStops(spec.stop);
  CheckAlternatives(spec);
  Validate(spec.routed_experts, length, limits_.has_experts);
  std::lock_guard lock(mutex_);
  controller_.CheckGroup(spec.group);
}

void Front::CheckPrompt(const std::vector<int32_t>& ids, bool pooled) const {
  if (ids.empty()) throw ParameterError("prompt", "is empty: it has no tokens");
  const auto outside = [&](int32_t id) { return id < 0 || id >= limits_.vocab_size; };
  if (const auto bad = std::find_if(ids.begin(), ids.end(), outside); bad != ids.end()) {
    throw ParameterError("prompt", fmt::format("has {}, which is not a token id: want 0 to {}",
                                               *bad, limits_.vocab_size - 1));
  }
  if (std::ssize(ids) < longest() + (pooled ? 1 : 0)) return;
  // The text begins as OpenAI's error does, because agents search error messages for these words.
  if (pooled)
    throw ContextLengthError(
        fmt::format("This model's maximum context length is {} tokens. However, the input has {} "
                    "tokens. Please reduce its length.",
                    longest(), ids.size()));
  throw ContextLengthError(
      fmt::format("This model's maximum context length is {} tokens. However, the prompt has {} "
                  "tokens, which leaves no room for an answer. Please reduce its length.",
                  longest(), ids.size()));
}

// All samples of one prompt have the same name. So only the first sample is checked for a name in
// use.
bool Front::IsNameTaken(const GenerationSpec& spec) const {
  return !spec.name.empty() && spec.copy == 0 && names_.contains(spec.name);
}

void Front::ReleaseName(const std::string& name) {
  std::lock_guard lock(mutex_);
  const auto found = names_.find(name);
  if (found != names_.end() && --found->second == 0) names_.erase(found);
}

uint64_t Front::Submit(GenerationSpec spec, GenerationCallback callback) {
  const std::optional<KvRoom> room = spec.kv;
  try {
    return SubmitChecked(std::move(spec), std::move(callback));
  } catch (const Error& error) {
    if (room && transfers_) transfers_->Refuse(*room, error.what());
    throw;
  }
}

uint64_t Front::SubmitChecked(GenerationSpec spec, GenerationCallback callback) {
  CheckTransfer(spec);
  CheckFields(spec);
  std::vector<ControlMessage> messages;
  std::lock_guard order(order_);
  uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    if (lost_) throw Error(ErrorKind::kUnavailable, lost_reason_);
    if (draining_) throw Error(ErrorKind::kUnavailable, "the server is shutting down");
    controller_.CheckGroup(spec.group);  // the number of groups may have changed since CheckFields
    // Probes (`measured` false) are exempt from the limit, so that a busy server does not look
    // unhealthy.
    if (spec.measured && limits_.max_open > 0 &&
        open_.size() >= static_cast<size_t>(limits_.max_open)) {
      throw Full();
    }
    if (IsNameTaken(spec))
      throw ParameterError("rid", fmt::format("{} is the name of a request that is still open: "
                                              "choose another name",
                                              spec.name));
    if (!spec.name.empty()) ++names_[spec.name];
    if (spec.measured) metrics_.AddSubmission(spec.sampling.max_new_tokens);
    id = next_id_++;
    const std::optional<int32_t> pinned = spec.group;
    auto open = std::make_shared<Open>(id, tokenizer_, std::move(spec), std::move(callback));
    open->tokens = std::ssize(open->spec.input_ids);
    open->next.weight_version = weight_version_;
    open->group = controller_.Open(pinned, open->tokens, open->prompt());
    OpenTransfer(*open);
    if (!held() && !HeldBack(id)) Append(*open, &messages);  // else it is sent later
    open_.emplace(id, std::move(open));
  }
  if (!messages.empty()) link_.Send(messages);
  return id;
}

void Front::CheckCapacity(size_t count) const {
  const auto most = static_cast<size_t>(limits_.max_open);
  if (most == 0) return;
  if (count > most)
    throw Invalid("{} generations in one request exceed the limit of {} open generations", count,
                  most);
  std::lock_guard lock(mutex_);
  if (open_.size() + count > most) throw Full();
}

// Requires mutex_.
Error Front::Full() const {
  return Error(ErrorKind::kBusy, fmt::format("{} requests are open already", open_.size()),
               "try again later");
}

void Front::Abort(const std::vector<uint64_t>& ids) {
  std::vector<Ending> endings;
  {
    std::lock_guard order(order_);
    std::vector<ControlMessage> aborts;
    {
      std::lock_guard lock(mutex_);
      for (const uint64_t id : ids)
        if (const auto open = open_.find(id); open != open_.end())
          Abort(*open->second, &endings, &aborts);
    }
    if (!aborts.empty()) link_.Send(aborts);
  }
  End(endings);
}

void Front::Abort(Open& open, std::vector<Ending>* endings, std::vector<ControlMessage>* aborts) {
  open.aborted = true;
  if (open.kv_role != KvRole::kOwn)
    transfers_->Close(open.next.id, "the request was aborted on the other server");
  if (!paused_ && open.sent) {
    aborts->emplace_back(AbortRequest{open.next.id});
  } else {
    Finish(open, {.finish = FinishReason::kAbort}, endings);
  }
}

// Time limits do not run while generation is paused: a client that pauses it decides for how long,
// and no request makes progress meanwhile.
void Front::SetControlValues(const std::function<void(EngineControls*)>& change) {
  change(&controls_);
  if (controls_.paused == stopped_since_.has_value()) return;
  if (transfers_) transfers_->SetPaused(controls_.paused);
  const auto now = SteadyClock::now();
  if (controls_.paused) {
    stopped_since_ = now;
    return;
  }
  for (const auto& [id, open] : open_) open->since += now - std::max(*stopped_since_, open->since);
  stopped_since_.reset();
}

void Front::AbortOverdue() {
  std::vector<uint64_t> ids;
  {
    std::lock_guard lock(mutex_);
    const auto now = stopped_since_.value_or(SteadyClock::now());
    for (const auto& [id, open] : open_) {
      const auto limit = open->running ? limits_.running_timeout : limits_.queue_timeout;
      if (limit.count() <= 0 || now - open->since < limit || !open->overdue.empty()) continue;
      open->overdue =
          open->running
              ? fmt::format("the request ran for more than {} s (--request-timeout)", limit.count())
              : fmt::format("the request waited for more than {} s (--request-queue-timeout)",
                            limit.count());
      ids.push_back(id);
    }
  }
  Abort(ids);
}

void Front::AbortNamed(const std::string& name) {
  AbortWhere(
      [&name](const Open& open) { return open.spec.name == name || open.spec.batch_name == name; });
}

int64_t Front::AbortAll() {
  return AbortWhere([](const Open&) { return true; });
}

int64_t Front::AbortWhere(const std::function<bool(const Open&)>& chosen) {
  std::vector<uint64_t> ids;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, open] : open_)
      if (chosen(*open)) ids.push_back(id);
  }
  Abort(ids);
  return std::ssize(ids);
}

void Front::OnMessage(const EngineMessage& message) {
  if (const auto* step = std::get_if<StepOutputs>(&message)) {
    const auto now = SteadyClock::now();
    for (const RequestOutput& output : step->outputs) Deliver(output, now);
  } else if (const auto* failure = std::get_if<EngineFailure>(&message)) {
    LOG_ERROR("a rank failed: {}", failure->what);
  } else {
    Questions::OnResponse answer;
    std::optional<EngineMessage> report;
    {
      std::lock_guard lock(mutex_);
      answer = questions_.Take(message);
      if (const auto* stats = std::get_if<StatsReport>(&message)) {
        last_stats_ = StatsOfAllGroups(stats->groups);
        report = StatsReport{.ticket = stats->ticket, .groups = last_stats_};
      }
      const auto* flush = std::get_if<FlushResult>(&message);
      if (flush && flush->done) controller_.ForgetPrompts();
    }
    if (answer) answer(report ? *report : message);
  }
}

void Front::Deliver(const RequestOutput& output, SteadyClock::time_point now) {
  std::shared_ptr<Open> open;
  std::string overdue;
  bool suspect = false;
  std::optional<SteadyClock::time_point> ended;
  bool transfers = false;
  int group = 0;
  {
    std::lock_guard lock(mutex_);
    const auto it = open_.find(output.id);
    if (it == open_.end()) return;  // the front has already ended it, because of a stop string
    open = it->second;
    if (open->ending) return;
    transfers = open->kv_role != KvRole::kOwn && !open->aborted;
    group = open->group;
    const auto count = std::ssize(output.new_tokens);
    answered_ |= count > 0 || output.finish != FinishReason::kNone;
    open->tokens += count;
    if (count > 0 && !std::exchange(open->running, true)) open->since = now;
    if (count > 0) ended = std::exchange(ended_, std::nullopt);
    controller_.Grow(open->group, count);
    overdue = open->overdue;
    suspect = suspects_.contains(output.id);
  }
  if (transfers) transfers_->OnOutput(output.id, group, output);
  if (ended)
    LOG_INFO("the first token came {:.0f} ms after the previous ranks ended",
             std::chrono::duration<double, std::milli>(now - *ended).count());
  if (!suspect) return Take(*open, output, overdue, now);
  RequestOutput taken = output;
  const bool passes = open->PassesTrial(output);
  if (passes) taken.finish = FinishReason::kNone;
  Take(*open, taken, overdue, now);
  if (passes || open->next.finished()) EndTrial(output.id);
}

void Front::Take(Open& open, const RequestOutput& output, const std::string& overdue,
                 SteadyClock::time_point now) {
  const int32_t tokens_before = open.next.completion_tokens;
  open.Take(output);
  const bool is_overdue = !overdue.empty() && open.next.finish == FinishReason::kAbort;
  if (is_overdue) {
    open.next.finish = FinishReason::kError;
    open.next.error = overdue;
    open.next.error_kind = ErrorKind::kUnavailable;
  }
  if (open.spec.measured) Measure(open, output, tokens_before, is_overdue, now);
  if (open.next.finished()) {
    if (open.spec.kv) transfers_->Close(output.id, "the request has ended on the other server");
    if (output.finish == FinishReason::kNone)
      link_.Send({AbortRequest{output.id}});  // ended by a stop string, which ranks do not match
    // The name is released here, so that the client can reuse it right after the response.
    ReleaseName(open.spec.name);
    open.Emit();
    std::lock_guard lock(mutex_);
    controller_.Close(open.group, open.tokens);
    open_.erase(output.id);
    if (open_.empty()) idle_.notify_all();
  } else if (open.next.tokens.size() >= static_cast<size_t>(open.spec.stream_interval)) {
    open.Emit();
  }
}

// Adds `output` to the metrics. `tokens_before`: number of tokens of the generation before
// `output`. `overdue`: it ended because of a timeout.
void Front::Measure(Open& open, const RequestOutput& output, int32_t tokens_before, bool overdue,
                    SteadyClock::time_point now) {
  const GenerationEvent& next = open.next;
  metrics_.AddOutput({.tokens = next.completion_tokens - tokens_before,
                      .prompt_tokens = next.prompt_tokens,
                      .cached_tokens = output.cached_tokens,
                      .queue_seconds = output.queue_seconds},
                     now, &open.times);
  if (!next.finished()) return;
  open.next.times = open.times;
  metrics_.AddEnd(EndOf(next, overdue), open.times, next.prompt_tokens, next.completion_tokens,
                  now);
}

void Front::OnRanksLost(const std::string& why) {
  std::map<uint64_t, std::shared_ptr<Open>> open;
  std::vector<std::function<void()>> answers;
  {
    std::lock_guard lock(mutex_);
    if (lost_.exchange(true)) return;
    lost_reason_ = why;
    open.swap(open_);
    std::erase_if(open, [](const auto& entry) { return entry.second->ending; });
    names_.clear();
    suspects_.clear();
    answers = questions_.TakeAll(why);
  }
  for (auto& [id, request] : open) {
    request->next.finish = FinishReason::kError;
    request->next.error = why;
    request->next.error_kind = ErrorKind::kPeer;
    if (request->spec.measured) metrics_.CountEnd(metrics::End::kError);
    request->Emit();
  }
  for (const auto& answer : answers) answer();
  idle_.notify_all();
}

void Front::StartDraining() { draining_ = true; }

void Front::SetWeightVersion(std::string version) {
  std::lock_guard lock(mutex_);
  weight_version_ = std::move(version);
}

std::string Front::weight_version() const {
  std::lock_guard lock(mutex_);
  return weight_version_;
}

size_t Front::open() const {
  std::lock_guard lock(mutex_);
  return open_.size();
}

std::vector<int64_t> Front::open_by_group() const {
  std::lock_guard lock(mutex_);
  std::vector<int64_t> open;
  for (const DpController::Load& load : controller_.loads()) open.push_back(load.requests);
  return open;
}

bool Front::WaitUntilIdle(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, timeout, [this] { return open_.empty(); });
}

}  // namespace switchyard
