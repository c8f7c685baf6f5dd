// Restarts of the ranks: which state of a request the front keeps, and what it sends to the new
// ranks.
#include <algorithm>
#include <iterator>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "server/front/front.h"
#include "server/front/open_generation.h"

namespace switchyard {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Number of tokens after which a request that runs alone is no longer suspect. One token is not
// enough: ranks launch passes ahead, so they may have ended while they computed the token after the
// next one.
constexpr int32_t kTrialTokens = 2;

// Numbers of consecutive ends of the ranks without any output. After kNoOutputEnds, the requests
// of a killed batch become suspects too. After kSuspectEnds ends that span at least
// kSuspectTime, a request that ran alone when its ranks were killed is taken as the cause.
// Kills with another cause are unlikely to be so frequent, for so long, before the first token. A
// restart takes only milliseconds, so the supervisor delays restarts after such ends.
constexpr int kNoOutputEnds = 5, kSuspectEnds = 8;
constexpr std::chrono::seconds kSuspectTime{3};

double Milliseconds(SteadyClock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

bool RanksEnd::Had(uint64_t id) const {
  return !batch || std::ranges::find(*batch, id) != batch->end();
}

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
                        .cached_tokens = next.cached_tokens,
                        .kv = kv_role};
  if (trial) {
    SamplingParams& sampling = request.sampling;
    sampling.max_new_tokens =
        std::min(sampling.max_new_tokens, next.completion_tokens + kTrialTokens);
    // min_new_tokens must not exceed max_new_tokens. Lowering it is safe: max_new_tokens ends the
    // trial before a stop id could be sampled.
    sampling.min_new_tokens = std::min(sampling.min_new_tokens, sampling.max_new_tokens);
  }
  return request;
}

bool Front::Open::PassesTrial(const RequestOutput& last) const {
  const auto tokens = next.completion_tokens + static_cast<int32_t>(last.new_tokens.size());
  return last.finish == FinishReason::kLength && tokens < spec.sampling.max_new_tokens;
}

void Front::Append(Open& open, std::vector<ControlMessage>* messages) {
  if (open.spec.grammar) grammars_.AppendDefinition(*open.spec.grammar, messages);
  open.sent = true;
  open.next.weight_version = weight_version_;
  messages->emplace_back(open.Request(limits_.pooling, suspects_.contains(open.next.id)));
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
      // Queries are sent only if there is no suspect. A query that makes ranks fail would otherwise
      // be blamed on the suspect.
      messages = questions_.TakeUnsent();
      for (const auto& [id, open] : open_)
        if (!open->sent && !open->ending && !HeldBack(id)) Append(*open, &messages);
      held_since_.reset();
    }
  }
  if (!messages.empty()) link_.Send(messages);
}

void Front::Finish(Open& open, RequestOutput last, std::vector<Ending>* endings) {
  if (std::exchange(open.ending, true)) return;
  last.id = open.next.id;
  last.cached_tokens = open.next.cached_tokens;
  last.drafts = open.next.drafts;
  endings->push_back({.open = open_.at(last.id),
                      .last = std::move(last),
                      .overdue = open.overdue,
                      .suspect = suspects_.erase(open.next.id) > 0});
}

// These generations are `ending`, so only this thread modifies them until they are removed from
// open_.
void Front::End(const std::vector<Ending>& endings) {
  const auto now = SteadyClock::now();
  bool suspect = false;
  for (const Ending& ending : endings) {
    suspect |= ending.suspect;
    Take(*ending.open, ending.last, ending.overdue, now);
  }
  if (!suspect) return;
  std::lock_guard order(order_);
  SendUnsent();  // the next suspect, or all requests
}

void Front::BeginPause(SteadyClock::time_point ended) {
  std::vector<Ending> endings;
  Questions::Deliveries answers;
  {
    std::lock_guard order(order_);
    std::lock_guard lock(mutex_);
    if (lost_) return;
    paused_ = true;
    if (!held_since_) held_since_ = ended;
    if (!paused_since_) paused_since_ = ended;
    std::vector<ControlMessage> no_aborts;
    for (const auto& [id, open] : open_) {
      if (open->aborted) Abort(*open, &endings, &no_aborts);
      EndTransfer(*open, &endings);
    }
    answers = questions_.TakeHeld();
  }
  End(endings);
  for (const auto& answer : answers) answer();
}

// The pages of a transfer end with their ranks. A request of a decode worker continues on the new
// ranks, which compute its prompt again. One of a prefill worker ends, and its other server gets
// the error. Requires mutex_.
void Front::EndTransfer(Open& open, std::vector<Ending>* endings) {
  const KvRole role = std::exchange(open.kv_role, KvRole::kOwn);
  if (role == KvRole::kOwn) return;
  const std::string why = "the ranks of the other server have ended";
  transfers_->Close(open.next.id, why);
  if (role == KvRole::kExport)
    Finish(open,
           {.finish = FinishReason::kError,
            .error = "the ranks ended before the pages of the request were read",
            .error_kind = ErrorKind::kUnavailable},
           endings);
}

// Counts ends of ranks that had requests and answered none of them. Returns 0 if the last ranks are
// not such ones. Requires mutex_.
int Front::EndedWithoutAnswer(const RanksEnd& end) {
  const bool worked = std::ranges::any_of(
      open_, [&](const auto& entry) { return entry.second->sent && end.Had(entry.first); });
  if (answered_) no_output_ends_ = 0;
  if (answered_ || !worked) return 0;
  if (no_output_ends_++ == 0) no_output_since_ = end.time;
  return no_output_ends_;
}

// Whether a suspect that ran alone is the cause of the end: the same rank has failed twice with it,
// or kSuspectEnds is reached. One failure of a rank is not enough, because another cause may
// make each of several ranks fail once, in different epochs. A request that is the cause therefore
// ends after at most (number of ranks + 1) failures. Requires mutex_.
bool Front::IsCause(const Open& suspect, const RanksEnd& end, int no_output_ends) const {
  const auto failed_before = [&](int rank) { return suspect.failed_ranks.contains(rank); };
  if (std::ranges::any_of(end.failed, failed_before)) return true;
  if (no_output_ends < kSuspectEnds) return false;
  return end.by_itself() || end.time - no_output_since_ >= kSuspectTime;
}

int Front::Pause(const RanksEnd& end) {
  BeginPause(end.time);
  int no_output_ends = 0;
  std::vector<Ending> endings;
  Questions::Deliveries answers;
  {
    std::lock_guard order(order_);
    std::lock_guard lock(mutex_);
    if (lost_) return 0;
    ++deaths_;
    if (!limits_.keeps_cache) controller_.ForgetPrompts();
    no_output_ends = EndedWithoutAnswer(end);
    const bool suspects = end.by_itself() || no_output_ends >= kNoOutputEnds;
    answers = questions_.OnRanksEnd(end.why);
    const uint64_t alone = suspects_.empty() ? 0 : *suspects_.begin();  // 0: none
    for (const auto& [id, open] : open_) {
      const bool sent = std::exchange(open->sent, false);
      if (!sent || !suspects || !end.Had(id) || open->ending) continue;
      suspects_.insert(id);
      const bool is_cause = alone == id && IsCause(*open, end, no_output_ends);
      open->failed_ranks.insert(end.failed.begin(), end.failed.end());
      if (!is_cause) continue;
      LOG_ERROR(
          "the ranks ended again and again while they computed request {}, the last time alone: "
          "the request ends with an error",
          id);
      Finish(*open,
             {.finish = FinishReason::kError,
              .error = end.why + ", while it computed this request alone",
              .error_kind = ErrorKind::kPeer},
             &endings);
    }
  }
  End(endings);
  for (const auto& answer : answers) answer();
  return no_output_ends;
}

void Front::Regroup(int groups) {
  controller_.Reset(groups);
  for (const auto& [id, open] : open_) {
    std::optional<int32_t> pinned = open->spec.group;
    if (pinned) *pinned %= groups;
    open->group = controller_.Open(pinned, open->tokens, open->prompt());
  }
}

void Front::SetAbsentGroups(std::span<const int> groups) {
  std::lock_guard lock(mutex_);
  if (lost_) return;
  CHECK(paused_);
  controller_.SetAbsent(groups);
  absent_groups_ = static_cast<int>(groups.size());
  std::erase_if(absent_since_, [&](const auto& group) {
    return std::ranges::find(groups, group.first) == groups.end();
  });
  for (const int group : groups) absent_since_.try_emplace(group, SteadyClock::now());
  for (const auto& [id, open] : open_) {
    if (open->ending || !controller_.absent(open->group)) continue;
    controller_.Close(open->group, open->tokens);
    open->group = controller_.Open(std::nullopt, open->tokens, open->prompt());
  }
}

// Statistics of all groups from those of the groups that serve. Requires mutex_.
std::vector<EngineStats> Front::StatsOfAllGroups(std::vector<EngineStats> serving) const {
  if (absent_groups_ == 0) return serving;
  std::vector<EngineStats> all(controller_.loads().size());
  size_t next = 0;
  for (int group = 0; group < std::ssize(all); ++group) {
    if (!controller_.absent(group) && next < serving.size()) all[group] = serving[next++];
  }
  return all;
}

void Front::PauseForChange(SteadyClock::time_point since, int groups, bool caches_stay) {
  {
    std::lock_guard lock(mutex_);
    // Counted once per pause: if a layout fails to load, the next one loads in the same pause.
    changes_ += paused_ ? 0 : 1;
  }
  BeginPause(since);
  std::lock_guard order(order_);
  std::lock_guard lock(mutex_);
  if (lost_) return;
  if (answered_) no_output_ends_ = 0;
  questions_.OnChange();
  for (const auto& [id, open] : open_) open->sent = false;
  if (std::ssize(controller_.loads()) != groups) {
    Regroup(groups);
    absent_groups_ = 0;
    absent_since_.clear();
  } else if (!caches_stay || !limits_.keeps_cache) {
    controller_.ForgetPrompts();
  }
}

bool Front::Progressed() const {
  std::lock_guard lock(mutex_);
  return open_.empty() || answered_;
}

void Front::HoldNew() {
  // Holds order_, so that no request with an id up to hold_after_ is sent later.
  const std::scoped_lock lock(order_, mutex_);
  hold_after_ = next_id_ - 1;
}

bool Front::Drained() const {
  std::lock_guard lock(mutex_);
  return open_.empty() || HeldBack(open_.begin()->first);
}

void Front::EndHold() {
  std::lock_guard order(order_);
  {
    std::lock_guard lock(mutex_);
    hold_after_.reset();
  }
  SendUnsent();
}

void Front::Resume() {
  size_t open = 0, suspects = 0;
  int64_t number = 0;
  SteadyClock::duration pause{};
  {
    std::lock_guard order(order_);
    {
      std::lock_guard lock(mutex_);
      if (lost_) return;
      const auto now = SteadyClock::now();
      pause = now - *std::exchange(paused_since_, std::nullopt);
      pause_seconds_ += std::chrono::duration<double>(pause).count();
      number = ++epoch_;
      paused_ = false;
      answered_ = false;
      ended_ = now - pause;
      open = open_.size();
      suspects = suspects_.size();
    }
    grammars_ = DefinedGrammars();
    if (const EngineControls present = controls(); present != EngineControls{})
      link_.Send({SetControls{.controls = present}});  // before the requests
    SendUnsent();
  }
  LOG_INFO("epoch {}: serving again after a pause of {:.0f} ms; {} open requests continue{}",
           number, Milliseconds(pause), open,
           suspects ? fmt::format(", after {} that run alone first", suspects) : "");
}

// Call when the trial of a suspect has ended. If the request has not ended, it is sent again
// together with the other requests.
void Front::EndTrial(uint64_t id) {
  std::lock_guard order(order_);
  {
    std::lock_guard lock(mutex_);
    if (suspects_.erase(id) == 0) return;
    const auto open = open_.find(id);
    if (open != open_.end()) {
      open->second->sent = false;
      open->second->failed_ranks.clear();
    }
  }
  SendUnsent();
}

RankHistory Front::history() const {
  std::lock_guard lock(mutex_);
  const auto since = [now =
                          SteadyClock::now()](const std::optional<SteadyClock::time_point>& start) {
    return start ? std::chrono::duration<double>(now - *start).count() : 0.0;
  };
  std::map<int, double> absent_for;
  for (const auto& [group, start] : absent_since_) absent_for[group] = since(start);
  return {.epoch = epoch_,
          .deaths = deaths_,
          .changes = changes_,
          .absent = absent_groups_,
          .absent_for = std::move(absent_for),
          .pause_seconds = pause_seconds_ + since(paused_since_),
          .paused_for = since(paused_since_),
          .held_for = since(held_since_)};
}

}  // namespace switchyard
