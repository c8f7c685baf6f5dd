// Which attention group serves a request.
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

// Knows the open requests of each attention group, since all of them pass through whoever owns
// this. Deterministic: ties go to the first group. Guarded by its owner.
class DpController {
 public:
  struct Load {
    int64_t requests = 0, tokens = 0;  // open
  };

  DpController() : DpController(1, LoadBalanceMethod::kRoundRobin) {}
  DpController(int groups, LoadBalanceMethod method) : method_(method), loads_(groups) {}

  // The group for a request: `pinned` if it names one (Error kInvalid where there is no such
  // group), which does not count as a turn. The request is open from now on.
  int Open(std::optional<int32_t> pinned, int64_t tokens);
  void CheckGroup(std::optional<int32_t> pinned) const;
  // A request that is open has got so many tokens more.
  void Grow(int group, int64_t tokens) { loads_[group].tokens += tokens; }
  // A request has ended with so many tokens in all.
  void Close(int group, int64_t tokens);

  std::span<const Load> loads() const { return loads_; }

 private:
  int Choose();

  LoadBalanceMethod method_;
  std::vector<Load> loads_;
  size_t turn_ = 0;
};

}  // namespace switchyard
