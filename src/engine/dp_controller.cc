#include "engine/dp_controller.h"

#include <algorithm>
#include <tuple>

#include "core/check.h"
#include "core/error.h"
#include "core/hash.h"
#include "engine/config.h"
#include "engine/request.h"

namespace switchyard {
namespace {

// In each step all groups wait for the slowest one. So groups are balanced more closely than the
// workers of a router, whose steps are independent. The tree has at most 4 million tokens.
constexpr CacheAwareOptions kGroupOptions{.balance_abs_threshold = 4,
                                          .balance_rel_threshold = 1.1,
                                          .max_tree_bytes = size_t{1} << 24,
                                          .prefers_fewest_open = true,
                                          .match_unit = sizeof(int32_t)};

// The bytes by which CacheAwareChoice compares prompts: a hash of the salt, then the token ids.
std::string PromptKey(const CachedPrompt& prompt) {
  std::string key;
  if (!prompt.cache_salt.empty()) {
    const uint64_t hash = HashOf(prompt.cache_salt);
    key.append(reinterpret_cast<const char*>(&hash), sizeof(hash));
  }
  key.append(reinterpret_cast<const char*>(prompt.ids.data()),
             std::min(prompt.ids.size_bytes(), kMaxPromptKey));
  return key;
}

}  // namespace

LoadBalanceMethod ParseLoadBalanceMethod(std::string_view name, bool has_prefix_cache) {
  if (name == "auto")
    return has_prefix_cache ? LoadBalanceMethod::kCacheAware : LoadBalanceMethod::kRoundRobin;
  if (name == "round_robin") return LoadBalanceMethod::kRoundRobin;
  if (name == "total_requests") return LoadBalanceMethod::kTotalRequests;
  if (name == "total_tokens") return LoadBalanceMethod::kTotalTokens;
  if (name != "cache_aware")
    throw Invalid(
        "--load-balance-method {}: want auto, cache_aware, round_robin, total_requests or "
        "total_tokens",
        name);
  if (!has_prefix_cache)
    throw Invalid("--load-balance-method cache_aware needs the prefix cache: remove {}",
                  "--disable-radix-cache");
  return LoadBalanceMethod::kCacheAware;
}

DpController MakeDpController(const EngineConfig& config) {
  return {config.mesh.attention_groups(),
          ParseLoadBalanceMethod(config.load_balance_method, !config.disable_radix_cache)};
}

int DpController::Open(std::optional<int32_t> pinned, int64_t tokens, const CachedPrompt& prompt) {
  CheckGroup(pinned);
  const std::string key = prompts_ ? PromptKey(prompt) : std::string();
  const int group = pinned && !absent_[*pinned] ? *pinned : Choose(key);
  if (prompts_) prompts_->Add(key, group);
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
  ForgetPrompts();
}

void DpController::ForgetPrompts() {
  const bool uses = method_ == LoadBalanceMethod::kCacheAware && loads_.size() > 1;
  prompts_ = uses ? std::make_unique<CacheAwareChoice>(kGroupOptions) : nullptr;
}

void DpController::SetAbsent(std::span<const int> groups) {
  absent_.assign(loads_.size(), false);
  for (const int group : groups) {
    absent_.at(static_cast<size_t>(group)) = true;
    if (prompts_) prompts_->Forget(group);
  }
  CHECK(std::ranges::find(absent_, false) != absent_.end());
}

int DpController::Choose(std::string_view key) {
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
    case LoadBalanceMethod::kCacheAware: {
      if (!prompts_) return groups.front();  // the only one
      std::vector<CacheAwareChoice::Candidate> candidates;
      candidates.reserve(groups.size());
      for (const int g : groups) candidates.push_back({.worker = g, .open = loads_[g].requests});
      return static_cast<int>(prompts_->Choose(candidates, key));
    }
  }
  CheckFailed(__FILE__, __LINE__, "unknown load balance method");
}

}  // namespace switchyard
