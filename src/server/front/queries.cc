// Questions of the front to the ranks.
#include <utility>

#include "server/front/front.h"

namespace switchyard {

template <typename Answer, typename Message>
void Front::Ask(Message message, std::function<void(const Answer&)> callback,
                std::function<Answer(const std::string& why)> if_lost) {
  std::lock_guard order(order_);
  ControlMessage asked;
  {
    std::lock_guard lock(mutex_);
    if (lost_) throw Error(ErrorKind::kUnavailable, lost_reason_);
    asked = questions_.Add(
        std::move(message),
        [callback = std::move(callback)](const EngineMessage& answer) {
          if (const auto* mine = std::get_if<Answer>(&answer)) callback(*mine);
        },
        [if_lost = std::move(if_lost)](const std::string& why) -> EngineMessage {
          return if_lost(why);
        });
    if (paused_) return;  // Resume sends it
  }
  link_.Send({std::move(asked)});
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
      [](const std::string&) { return StatsReport{}; });
}

void Front::RecordExperts(RecordAction action, std::function<void(const RecordResult&)> callback) {
  Ask<RecordResult>(switchyard::RecordExperts{.action = action}, std::move(callback),
                    [](const std::string& why) { return RecordResult{.dump = {.error = why}}; });
}

void Front::GetExpertLoad(std::function<void(const ExpertLoadReport&)> callback) {
  Ask<ExpertLoadReport>(switchyard::GetExpertLoad{}, std::move(callback),
                        [](const std::string& why) { return ExpertLoadReport{.error = why}; });
}

void Front::RebalanceExperts(std::function<void(const EplbReport&)> callback) {
  Ask<EplbReport>(switchyard::RebalanceExperts{}, std::move(callback),
                  [](const std::string& why) { return EplbReport{.refused = why}; });
}

void Front::GetEplb(std::function<void(const EplbReport&)> callback) {
  Ask<EplbReport>(switchyard::GetEplb{}, std::move(callback),
                  [](const std::string& why) { return EplbReport{.refused = why}; });
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

}  // namespace switchyard
