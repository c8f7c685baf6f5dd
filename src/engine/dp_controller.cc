#include "engine/dp_controller.h"

#include <algorithm>
#include <tuple>

#include "core/check.h"
#include "core/error.h"
#include "engine/request.h"

namespace switchyard {

LoadBalanceMethod ParseLoadBalanceMethod(std::string_view name) {
  if (name == "auto" || name == "round_robin") return LoadBalanceMethod::kRoundRobin;
  if (name == "total_requests") return LoadBalanceMethod::kTotalRequests;
  if (name == "total_tokens") return LoadBalanceMethod::kTotalTokens;
  throw Invalid("--load-balance-method {}: want auto, round_robin, total_requests or total_tokens",
                name);
}

int DpController::Open(std::optional<int32_t> pinned, int64_t tokens) {
  CheckGroup(pinned);
  const int group = pinned && !absent_[*pinned] ? *pinned : Choose();
  ++loads_[group].requests;
  loads_[group].tokens += tokens;
  return group;
}

void DpController::CheckGroup(std::optional<int32_t> pinned) const {
  if (pinned && (*pinned < 0 || *pinned >= std::ssize(loads_)))
    throw ParameterError("data_parallel_rank", fmt::format("is {}, want 0 to {} (--dp-size less 1)",
                                                           *pinned, loads_.size() - 1));
}

void DpController::Close(int group, int64_t tokens) {
  Load& load = loads_[group];
  --load.requests;
  load.tokens -= tokens;
  CHECK(load.requests >= 0 && load.tokens >= 0);
}

void DpController::Reset(int groups) {
  loads_.assign(static_cast<size_t>(groups), {});
  absent_.assign(static_cast<size_t>(groups), false);
  turn_ = 0;
}

void DpController::SetAbsent(std::span<const int> groups) {
  absent_.assign(loads_.size(), false);
  for (const int group : groups) absent_.at(static_cast<size_t>(group)) = true;
  CHECK(std::ranges::find(absent_, false) != absent_.end());
}

int DpController::Choose() {
  std::vector<int> groups;  // that serve
  for (int group = 0; group < std::ssize(loads_); ++group) {
    if (!absent_[group]) groups.push_back(group);
  }
  switch (method_) {
    case LoadBalanceMethod::kRoundRobin:
      return groups[turn_++ % groups.size()];
    case LoadBalanceMethod::kTotalRequests:
      return *std::ranges::min_element(groups, {}, [&](int g) { return loads_[g].requests; });
    case LoadBalanceMethod::kTotalTokens:
      return *std::ranges::min_element(
          groups, {}, [&](int g) { return std::tuple(loads_[g].tokens, loads_[g].requests); });
  }
  CheckFailed(__FILE__, __LINE__, "unknown load balance method");
}

}  // namespace switchyard
