// Requests that outlive their ranks: what the front keeps, and what it sends to new ranks.
#include <algorithm>
#include <utility>

#include "core/log.h"
#include "server/front/front.h"
#include "server/front/open_generation.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

// Number of tokens after which a request that runs alone is no longer suspect. The ranks may have
// ended while they computed the token after the next one, because they launch passes ahead.
constexpr int32_t kTrialTokens = 2;

double Milliseconds(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

EngineRequest Front::Open::Request(Pooling pooling, bool trial) const {
  EngineRequest request{.id = next.id,
                        .input_ids = spec.input_ids,
                        .sampling = spec.sampling,
                        .logprob = spec.logprob,
                        .routed_experts = spec.routed_experts,
                        .pooling = pooling,
                        .group = group,
                        .priority = spec.priority,
                        .cache_salt = spec.cache_salt,
                        .grammar = spec.grammar ? spec.grammar->id : 0,
                        .output_ids = output,
                        .cached_tokens = next.cached_tokens};
  if (trial) {
    SamplingParams& sampling = request.sampling;
    sampling.max_new_tokens =
        std::min(sampling.max_new_tokens, next.completion_tokens + kTrialTokens);
    // min_new_tokens must not exceed max_new_tokens. If it is lowered to this limit, still no stop
    // id is drawn before the limit.
    sampling.min_new_tokens = std::min(sampling.min_new_tokens, sampling.max_new_tokens);
  }
  return request;
}

bool Front::Open::PassesTrial(const RequestOutput& last) const {
  const auto tokens = next.completion_tokens + static_cast<int32_t>(last.new_tokens.size());
  return last.finish == FinishReason::kLength && tokens < spec.sampling.max_new_tokens;
}

void Front::Append(Open& open, std::vector<ControlMessage>* messages) {
  if (open.spec.grammar) grammars_.Introduce(*open.spec.grammar, messages);
  open.sent = true;
  messages->emplace_back(open.Request(limits_.pooling, suspects_.contains(open.next.id)));
  if (open.aborted) messages->emplace_back(AbortRequest{open.next.id});
}

void Front::SendUnsent() {
  std::vector<ControlMessage> messages;
  {
    std::lock_guard lock(mutex_);
    if (paused_ || lost_) return;
    if (!suspects_.empty()) {
      Open& first = *open_.at(*suspects_.begin());
      if (!first.sent) Append(first, &messages);
    } else {
      for (const auto& [id, open] : open_)
        if (!open->sent) Append(*open, &messages);
      held_since_.reset();
    }
  }
  if (!messages.empty()) link_.Send(messages);
}

void Front::Pause(const RanksEnd& end) {
  std::optional<uint64_t> culprit;
  int32_t cached = 0;
  {
    std::lock_guard order(order_);
    std::lock_guard lock(mutex_);
    if (lost_) return;
    paused_ = true;
    if (!held_since_) held_since_ = end.time;
    if (!paused_since_) paused_since_ = end.time;
    ++deaths_;
    const std::optional<uint64_t> alone =
        suspects_.empty() ? std::nullopt : std::optional(*suspects_.begin());
    for (const auto& [id, open] : open_) {
      const bool sent = std::exchange(open->sent, false);
      if (!sent || !end.by_itself) continue;
      const bool in_batch = !end.batch || std::ranges::find(*end.batch, id) != end.batch->end();
      if (!in_batch) continue;
      if (alone == id) culprit = id;
      suspects_.insert(id);  // the culprit leaves the set when it ends
    }
    if (culprit) cached = open_.at(*culprit)->next.cached_tokens;
  }
  if (!culprit) return;
  LOG_ERROR(
      "the ranks ended twice while they computed request {}, the second time alone: the request "
      "ends with an error",
      *culprit);
  Deliver({.id = *culprit,
           .finish = FinishReason::kError,
           .cached_tokens = cached,
           .error = end.why + ", while it computed this request alone",
           .error_kind = ErrorKind::kPeer},
          Clock::now());
}

void Front::Resume() {
  std::vector<ControlMessage> questions;
  size_t open = 0, suspects = 0;
  int64_t number = 0;
  Clock::duration pause{};
  {
    std::lock_guard order(order_);
    {
      std::lock_guard lock(mutex_);
      if (lost_) return;
      const auto now = Clock::now();
      pause = now - *std::exchange(paused_since_, std::nullopt);
      pause_seconds_ += std::chrono::duration<double>(pause).count();
      number = ++epoch_;
      paused_ = false;
      ended_ = now - pause;
      questions = questions_.Messages();
      open = open_.size();
      suspects = suspects_.size();
    }
    grammars_ = DefinedGrammars();
    if (!questions.empty()) link_.Send(questions);
    SendUnsent();
  }
  LOG_INFO("epoch {}: serving again after a pause of {:.0f} ms; {} open requests continue{}",
           number, Milliseconds(pause), open,
           suspects ? fmt::format(", after {} that run alone first", suspects) : "");
}

// The trial of a suspect has ended. If the request has not ended, it is sent again with the others.
void Front::EndTrial(uint64_t id) {
  std::lock_guard order(order_);
  {
    std::lock_guard lock(mutex_);
    if (suspects_.erase(id) == 0) return;
    if (const auto open = open_.find(id); open != open_.end()) open->second->sent = false;
  }
  SendUnsent();
}

RankHistory Front::history() const {
  std::lock_guard lock(mutex_);
  const auto since = [now = Clock::now()](const std::optional<Clock::time_point>& start) {
    return start ? std::chrono::duration<double>(now - *start).count() : 0.0;
  };
  return {.epoch = epoch_,
          .deaths = deaths_,
          .pause_seconds = pause_seconds_ + since(paused_since_),
          .paused_for = since(paused_since_),
          .held_for = since(held_since_)};
}

}  // namespace switchyard
