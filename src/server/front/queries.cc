// The front's queries to the ranks: statistics, expert load, profiles and others.
#include <memory>
#include <optional>
#include <utility>

#include "server/front/front.h"

namespace switchyard {

template <typename Answer, typename Message>
void Front::Ask(Message message, std::function<void(const Answer&)> callback,
                std::function<Answer(const std::string& why)> if_lost,
                std::function<Answer()> if_held) {
  std::optional<Answer> at_once;
  {
    std::lock_guard order(order_);
    std::vector<ControlMessage> messages;
    {
      std::lock_guard lock(mutex_);
      if (lost_) throw Error(ErrorKind::kUnavailable, lost_reason_);
      if (held() && if_held) {
        at_once = if_held();
      } else {
        std::function<EngineMessage()> held_answer;
        if (if_held) held_answer = [if_held = std::move(if_held)] { return if_held(); };
        questions_.Add(
            std::move(message),
            [callback](const EngineMessage& answer) {
              if (const auto* mine = std::get_if<Answer>(&answer)) callback(*mine);
            },
            [if_lost = std::move(if_lost)](const std::string& why) -> EngineMessage {
              return if_lost(why);
            },
            std::move(held_answer));
        if (!held()) messages = questions_.TakeUnsent();  // else SendUnsent sends it
      }
    }
    if (!messages.empty()) link_.Send(messages);
  }
  if (at_once) callback(*at_once);
}

namespace {

constexpr char kNoRanks[] = "the ranks are restarting";

}  // namespace

std::vector<EngineStats> Front::HeldStats() const {
  std::vector<EngineStats> groups = last_stats_;
  const auto loads = controller_.loads();
  groups.resize(loads.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g].running = 0;
    groups[g].waiting = static_cast<int32_t>(loads[g].requests);
  }
  return groups;
}

void Front::FlushCache(std::function<void(bool)> callback) {
  Ask<FlushResult>(
      switchyard::FlushCache{},
      [callback = std::move(callback)](const FlushResult& r) { callback(r.done); },
      [](const std::string&) { return FlushResult{}; });
}

void Front::Stats(std::function<void(const std::vector<EngineStats>&)> callback) {
  Ask<StatsReport>(
      GetStats{}, [callback = std::move(callback)](const StatsReport& r) { callback(r.groups); },
      [](const std::string&) { return StatsReport{}; },
      [this] { return StatsReport{.groups = HeldStats()}; });
}

void Front::RecordExperts(RecordAction action, std::function<void(const RecordResult&)> callback) {
  Ask<RecordResult>(switchyard::RecordExperts{.action = action}, std::move(callback),
                    [](const std::string& why) { return RecordResult{.dump = {.error = why}}; });
}

void Front::GetExpertLoad(std::function<void(const ExpertLoadReport&)> callback,
                          WhenHeld when_held) {
  std::function<ExpertLoadReport()> if_held;
  if (when_held == WhenHeld::kFail) if_held = [] { return ExpertLoadReport{.error = kNoRanks}; };
  Ask<ExpertLoadReport>(
      switchyard::GetExpertLoad{}, std::move(callback),
      [](const std::string& why) { return ExpertLoadReport{.error = why}; }, std::move(if_held));
}

void Front::RebalanceExperts(std::function<void(const EplbReport&)> callback) {
  Ask<EplbReport>(switchyard::RebalanceExperts{}, std::move(callback),
                  [](const std::string& why) { return EplbReport{.refused = why}; });
}

void Front::GetEplb(std::function<void(const EplbReport&)> callback, WhenHeld when_held,
                    bool slots) {
  std::function<EplbReport()> if_held;
  if (when_held == WhenHeld::kFail) if_held = [] { return EplbReport{.refused = kNoRanks}; };
  Ask<EplbReport>(
      switchyard::GetEplb{.slots = slots}, std::move(callback),
      [](const std::string& why) { return EplbReport{.refused = why}; }, std::move(if_held));
}

void Front::GetWeightChecksums(std::function<void(const WeightChecksums&)> callback) {
  Ask<WeightChecksums>(
      switchyard::GetWeightChecksums{}, std::move(callback),
      [](const std::string& why) { return WeightChecksums{.error = why}; },
      [] { return WeightChecksums{.error = kNoRanks}; });
}

namespace {

ProfileReport LostProfile(const std::string& why) {
  return {.outcome = ProfileOutcome::kConflict, .result = {.error = why}};
}

}  // namespace

void Front::StartProfile(profile::Options options,
                         std::function<void(const ProfileReport&)> callback) {
  Ask<ProfileReport>(switchyard::StartProfile{.options = std::move(options)}, std::move(callback),
                     LostProfile);
}

void Front::StopProfile(std::function<void(const ProfileReport&)> callback) {
  Ask<ProfileReport>(switchyard::StopProfile{}, std::move(callback), LostProfile);
}

void Front::ChangeControls(const std::function<void(EngineControls*)>& change, PauseAction action,
                           std::function<void(bool, const ControlsSet&)> callback) {
  // First the requests of the front, because the ranks may not have all of them.
  const int64_t aborted = action == PauseAction::kAbort ? AbortAll() : 0;
  std::lock_guard in_order(changes_order_);
  SetControls message{.action = action};
  {
    std::lock_guard lock(mutex_);
    SetControlValues(change);
    message.controls = controls_;
  }
  const auto lost = std::make_shared<bool>(false);
  Ask<ControlsSet>(
      message,
      [callback = std::move(callback), lost, aborted](const ControlsSet& set) {
        callback(!*lost, {.requests = set.requests + aborted});
      },
      [lost](const std::string&) {
        *lost = true;
        return ControlsSet{};
      });
  // While a suspect runs alone, queries wait for its end. It cannot end while the engine is paused.
  std::lock_guard order(order_);
  bool alone = false;
  {
    std::lock_guard lock(mutex_);
    alone = !paused_ && !suspects_.empty();
  }
  if (alone) link_.Send({SetControls{.controls = controls()}});
}

std::optional<int64_t> Front::ChangeHeldControls(const std::function<void(EngineControls*)>& change,
                                                 PauseAction action) {
  {
    std::lock_guard in_order(changes_order_);
    std::lock_guard lock(mutex_);
    if (!paused_) return std::nullopt;
    SetControlValues(change);
  }
  return action == PauseAction::kAbort ? AbortAll() : 0;
}

EngineControls Front::controls() const {
  std::lock_guard lock(mutex_);
  return controls_;
}

}  // namespace switchyard
