// Load balancing of requests over attention groups.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/cache_aware.h"

namespace switchyard {

struct EngineConfig;

enum class LoadBalanceMethod : uint8_t { kRoundRobin, kTotalRequests, kTotalTokens, kCacheAware };
// `--load-balance-method`: round_robin, total_requests (fewest open requests), total_tokens (fewest
// tokens of open requests, prompts and outputs), cache_aware (the group that has computed the
// longest prefix of the prompt, unless it has too many open requests), or auto. `has_prefix_cache`:
// auto is cache_aware, else round_robin, and cache_aware is an error. Error kInvalid names the
// flag.
LoadBalanceMethod ParseLoadBalanceMethod(std::string_view name, bool has_prefix_cache);

// What decides which cached prefixes a request can use.
struct CachedPrompt {
  std::span<const int32_t> ids;
  std::string_view cache_salt;  // requests of another salt share no prefixes with it
};

// Counts the open requests of each attention group; the caller must route all requests through it.
// Deterministic: ties go to the first group. Not thread-safe.
class DpController {
 public:
  struct Load {
    int64_t requests = 0, tokens = 0;  // of open requests
  };

  DpController() : DpController(1, LoadBalanceMethod::kRoundRobin) {}
  DpController(int groups, LoadBalanceMethod method) : method_(method) { Reset(groups); }

  // Returns the group for a request and counts the request as open. `pinned` forces a group (Error
  // kInvalid if there is no such group) and does not advance the round-robin counter. Never returns
  // an absent group: a request pinned to one gets another group. `prompt` is for cache_aware.
  int Open(std::optional<int32_t> pinned, int64_t tokens, const CachedPrompt& prompt = {});
  void CheckGroup(std::optional<int32_t> pinned) const;
  // Removes all open requests from the counts, and forgets all prompts. From now on, balances over
  // `groups` groups, none of which is absent.
  void Reset(int groups);
  // The groups whose ranks do not serve now. At least one group must not be absent. Forgets the
  // prompts of absent groups, because their next ranks may have empty caches.
  void SetAbsent(std::span<const int> groups);
  bool absent(int group) const { return absent_[group]; }
  void ForgetPrompts();  // all caches were emptied
  // Adds `tokens` to the tokens of an open request of `group`.
  void Grow(int group, int64_t tokens) { loads_[group].tokens += tokens; }
  // Ends a request that has `tokens` tokens in total.
  void Close(int group, int64_t tokens);

  std::span<const Load> loads() const { return loads_; }

 private:
  int Choose(std::string_view key);

  LoadBalanceMethod method_;
  std::vector<Load> loads_;
  std::vector<bool> absent_;  // [groups]
  size_t turn_ = 0;
  std::unique_ptr<CacheAwareChoice> prompts_;  // null unless several groups use cache_aware
};

// The controller of an engine with this configuration.
DpController MakeDpController(const EngineConfig& config);

}  // namespace switchyard
