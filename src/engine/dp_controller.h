// Load balancing of requests over attention groups.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace switchyard {

enum class LoadBalanceMethod : uint8_t { kRoundRobin, kTotalRequests, kTotalTokens };
// `--load-balance-method`: auto (round_robin), round_robin, total_requests (fewest open requests),
// total_tokens (fewest tokens of open requests, prompts and outputs). Error kInvalid names the
// flag.
LoadBalanceMethod ParseLoadBalanceMethod(std::string_view name);

// Counts the open requests of each attention group; the caller must route all requests through it.
// Deterministic: ties go to the first group. Not thread-safe.
class DpController {
 public:
  struct Load {
    int64_t requests = 0, tokens = 0;  // of open requests
  };

  DpController() : DpController(1, LoadBalanceMethod::kRoundRobin) {}
  DpController(int groups, LoadBalanceMethod method)
      : method_(method), loads_(groups), absent_(groups) {}

  // Returns the group for a request and counts the request as open. `pinned` forces a group (Error
  // kInvalid if there is no such group) and does not advance the round-robin counter. Never returns
  // an absent group: a request pinned to one gets another group.
  int Open(std::optional<int32_t> pinned, int64_t tokens);
  void CheckGroup(std::optional<int32_t> pinned) const;
  // Removes all open requests from the counts. From now on, balances over `groups` groups, none of
  // which is absent.
  void Reset(int groups);
  // The groups whose ranks do not serve now. At least one group must not be absent.
  void SetAbsent(std::span<const int> groups);
  bool absent(int group) const { return absent_[group]; }
  // Adds `tokens` to the tokens of an open request of `group`.
  void Grow(int group, int64_t tokens) { loads_[group].tokens += tokens; }
  // Ends a request that has `tokens` tokens in total.
  void Close(int group, int64_t tokens);

  std::span<const Load> loads() const { return loads_; }

 private:
  int Choose();

  LoadBalanceMethod method_;
  std::vector<Load> loads_;
  std::vector<bool> absent_;  // [groups]
  size_t turn_ = 0;
};

}  // namespace switchyard
