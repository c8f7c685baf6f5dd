#include "moe/stream_experts.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace switchyard {

int64_t ParseStreamExperts(const std::string& flag) {
  if (flag == "off") return 0;
  if (flag == "auto") return -1;
  int64_t tokens = 0;
  const char* const end = flag.data() + flag.size();
  const auto [last, error] = std::from_chars(flag.data(), end, tokens);
  if (error != std::errc() || last != end || tokens < 1)
    throw Invalid("--stream-experts {}: want auto, off or a number of tokens of at least 1", flag);
  return tokens;
}

int64_t BreakEvenTokens(const StreamCosts& c) {
  const double tokens = c.experts * c.expert_bytes * c.cpu_flops /
                        (c.link_bandwidth * c.top_k * std::max(c.flops_of_row, 1.0));
  return std::max(kMinStreamTokens, static_cast<int64_t>(std::ceil(std::min(tokens, 1e15))));
}

bool StreamsExperts(const MoeOptions& options, std::span<const int64_t> tokens,
                    std::span<const int64_t> decoding) {
  if (options.stream_tokens <= 0 || std::ranges::equal(tokens, decoding)) return false;
  return std::accumulate(tokens.begin(), tokens.end(), int64_t{0}) >= options.stream_tokens;
}

int StreamGroup(int experts) { return std::clamp(experts / 4, 1, 8); }

}  // namespace switchyard
