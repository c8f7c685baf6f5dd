#include "moe/cuda/dispatchers/nccl_exchange_plan.h"

#include <algorithm>

#include "moe/cuda/dispatchers/exchange_layout.h"
#include "moe/cuda/dispatchers/nccl_exchange_launch.h"
#include "quant/formats.h"

namespace switchyard::cuda {
namespace {

constexpr int64_t kNcclAlignment = 256;  // of the buffers, in bytes

// Bytes that a rank sends in fixed-size messages, per token of the longest rank.
int64_t FixedBytes(const ExchangeConfig& c, const ExchangeLayout& message) {
  return c.ranks * (message.row_stride + ReturnsFromRank(c) * message.combined_bytes);
}

}  // namespace

ExchangeLayout SingleSourceLayoutOf(const ExchangeConfig& config, int64_t longest) {
  ExchangeConfig single_source = config;
  single_source.ranks = 1;
  single_source.rank = 0;
  single_source.max_tokens = longest;
  return LayoutOf(single_source);
}

NcclSlotPlan NcclPlanOf(const ExchangeConfig& c) {
  LayoutOf(c);  // validates
  const ExchangeLayout message = SingleSourceLayoutOf(c, c.max_tokens);
  NcclSlotPlan plan = {};
  plan.fixed_tokens =
      c.low_latency ? c.max_tokens
                    : std::min(c.max_tokens, std::max(c.recorded_tokens,
                                                      kNcclSmallBytes / FixedBytes(c, message)));
  plan.send_buffer_bytes = RoundUp(
      std::max(message.returned, plan.fixed_tokens * ReturnsFromRank(c) * message.combined_bytes),
      kNcclAlignment);
  plan.metadata_bytes = MetadataBytes(message);

  const int64_t rows = c.ranks * c.max_tokens;
  // Capacity in returns. It suffices for both modes: the exact returns of max_tokens tokens, or the
  // fixed-size returns of fixed_tokens tokens.
  const int64_t returns =
      std::max(c.max_tokens * ReturnsOfToken(c), c.ranks * plan.fixed_tokens * ReturnsFromRank(c));
  const auto add = [&](int64_t bytes) {
    const int64_t begin = plan.bytes;
    plan.bytes += RoundUp(bytes, kNcclAlignment);
    return begin;
  };
  plan.send_buffers = add(c.ranks * plan.send_buffer_bytes);
  plan.metadata = add(c.ranks * plan.metadata_bytes);
  plan.rows = add(rows * message.row_stride);
  plan.ids = add(rows * c.top_k * 4);
  plan.weights = add(c.sum_by_rank ? rows * c.top_k * 4 : 0);
  plan.first_return = add(rows * 4);
  plan.place = add(c.max_tokens * ReturnsOfToken(c) * 4);
  plan.returned = add(returns * message.combined_bytes);
  plan.counts = add(sizeof(NcclCounts));
  return plan;
}

}  // namespace switchyard::cuda
