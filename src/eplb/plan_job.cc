#include "eplb/plan_job.h"

#include <fmt/format.h>

#include <cstring>
#include <thread>
#include <utility>

#include "core/log.h"
#include "eplb/background.h"

namespace switchyard {
namespace {

// First byte of the broadcast of rank 0's plan. An empty broadcast means that the plan is not
// ready.
constexpr char kPlanned = 'P', kFailed = 'F', kTimedOut = 'T';

bool IsReady(const std::future<std::string>& plan) {
  return plan.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

std::string EncodeMessage(char what, const void* data, size_t bytes) {
  std::string words(1, what);
  words.append(static_cast<const char*>(data), bytes);
  return words;
}
std::string EncodeMessage(char what, const std::string& why) {
  return EncodeMessage(what, why.data(), why.size());
}

std::string RunPlanner(const PlanJob::Planner& planner) {
  try {
    const std::vector<int32_t> plan = planner();
    return EncodeMessage(kPlanned, plan.data(), plan.size() * sizeof(int32_t));
  } catch (const std::exception& error) {
    return EncodeMessage(kFailed, error.what());
  }
}

}  // namespace

void PlanJob::Start(Planner planner) {
  began_ = std::chrono::steady_clock::now();
  if (world_.rank() != 0 || (timed_out_plan_.valid() && !IsReady(timed_out_plan_))) return;
  timed_out_plan_ = {};
  // Does not use std::async, because its futures block in their destructors.
  std::packaged_task<std::string()> task([planner = std::move(planner)] {
    LowerThreadPriority();
    return RunPlanner(planner);
  });
  plan_ = task.get_future();
  std::thread(std::move(task)).detach();
}

PlanJob::~PlanJob() {
  constexpr std::chrono::seconds kSoon{3};
  for (const auto* plan : {&plan_, &timed_out_plan_})
    if (plan->valid() && plan->wait_for(kSoon) != std::future_status::ready)
      LOG_WARNING("[EPLB] a planner is still running and was detached");
}

std::string PlanJob::PollPlanner(std::chrono::duration<double> patience) {
  if (!plan_.valid()) return EncodeMessage(kFailed, "the planner that timed out is still running");
  if (IsReady(plan_)) return plan_.get();
  if (std::chrono::steady_clock::now() - began_ < patience) return {};
  timed_out_plan_ = std::move(plan_);
  return EncodeMessage(kTimedOut,
                       fmt::format("the planner timed out after {} s", patience.count()));
}

std::optional<PlanJob::Outcome> PlanJob::Poll(std::chrono::duration<double> patience) {
  const std::string words =
      world_.Broadcast(world_.rank() == 0 ? PollPlanner(patience) : std::string());
  if (words.empty()) return std::nullopt;
  Outcome outcome;
  const size_t size = words.size() - 1;
  if (words[0] == kPlanned) {
    outcome.plan.resize(size / sizeof(int32_t));
    std::memcpy(outcome.plan.data(), words.data() + 1, outcome.plan.size() * sizeof(int32_t));
  } else {
    outcome.error = words.substr(1);
    outcome.timed_out = words[0] == kTimedOut;
  }
  return outcome;
}

}  // namespace switchyard
