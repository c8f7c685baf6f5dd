#include "moe/stream_experts.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "quant/formats.h"

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
  const double upload = c.uploaded * c.expert_bytes / c.link_bandwidth;
  const double of_token = c.top_k * c.cpu_share * c.flops_of_row / c.cpu_flops;
  const double tokens = std::min(upload / std::max(of_token, 1e-30), 1e15);
  return std::max(kMinStreamTokens, static_cast<int64_t>(std::ceil(tokens)));
}

double ShareOfColdExperts(int experts, int first, double exponent) {
  double all = 0, cold = 0;
  for (int e = 0; e < experts; ++e) {
    const double weight = std::pow(e + 1, -exponent);
    all += weight;
    if (e >= first) cold += weight;
  }
  return all > 0 ? cold / all : 0;
}

bool StreamsExperts(const MoeOptions& options, std::span<const int64_t> tokens,
                    std::span<const int64_t> decoding) {
  if (options.stream_tokens <= 0 || tokens.empty() || std::ranges::equal(tokens, decoding))
    return false;
  const int64_t longest = std::ranges::max(tokens);
  const int64_t rounds = std::max<int64_t>(1, CeilDiv(longest, options.long_seq_per_round_tokens));
  return std::accumulate(tokens.begin(), tokens.end(), int64_t{0}) >=
         options.stream_tokens * rounds;
}

int StreamGroup(int experts) { return std::clamp(experts / 4, 1, 8); }

StreamPlaces PlaceStreams(std::span<const int32_t> physical_to_logical, Range own,
                          int num_experts) {
  const int group = StreamGroup(num_experts);
  const int64_t physical = std::ssize(physical_to_logical);
  const int64_t rows = 1 + (num_experts + group - 1) / group;
  std::vector<int32_t> held(num_experts, -1), index(num_experts, -1);
  for (int64_t p = own.end - 1; p >= own.begin; --p)  // of copies, the first one
    held[physical_to_logical[p]] = static_cast<int32_t>(p - own.begin);
  StreamPlaces places;
  for (int32_t e = 0; e < num_experts; ++e) {
    if (held[e] >= 0) continue;
    index[e] = static_cast<int32_t>(places.experts.size());
    places.experts.push_back(e);
  }
  places.table.assign(static_cast<size_t>(rows * physical), -1);
  for (int64_t p = 0; p < physical; ++p) {
    const int32_t e = physical_to_logical[p], at = index[e];
    const int64_t row = at < 0 ? 0 : 1 + at / group;
    places.table[static_cast<size_t>(row * physical + p)] = at < 0 ? held[e] : at % group;
  }
  return places;
}

}  // namespace switchyard
