#include "moe/cuda/dispatchers/nccl_exchange_plan.h"

#include <algorithm>

#include "moe/cuda/dispatchers/exchange_layout.h"
#include "moe/cuda/dispatchers/nccl_exchange_launch.h"
#include "quant/formats.h"

namespace switchyard::cuda {
namespace {

int64_t RoundUp(int64_t bytes) { return CeilDiv(bytes, 256) * 256; }

// Bytes that a rank sends in fixed-size messages, per token of the longest rank.
int64_t FixedBytes(const ExchangeConfig& c, const ExchangeLayout& lone) {
  return c.ranks * (lone.row_stride + ReturnsFromRank(c) * lone.combined_bytes);
}

}  // namespace

ExchangeLayout SingleSourceLayoutOf(const ExchangeConfig& config, int64_t longest) {
  ExchangeConfig lone = config;
  lone.ranks = 1;
  lone.rank = 0;
  lone.max_tokens = longest;
  return LayoutOf(lone);
}

NcclSlotPlan NcclPlanOf(const ExchangeConfig& c) {
  LayoutOf(c);  // validates
  const ExchangeLayout lone = SingleSourceLayoutOf(c, c.max_tokens);
  NcclSlotPlan plan = {};
  plan.fixed_tokens =
      c.low_latency ? c.max_tokens
                    : std::min(c.max_tokens,
                               std::max(c.recorded_tokens, kNcclSmallBytes / FixedBytes(c, lone)));
  plan.send_buffer_bytes = RoundUp(
      std::max(lone.returned, plan.fixed_tokens * ReturnsFromRank(c) * lone.combined_bytes));
  plan.tag_bytes = TagBytes(lone);

  const int64_t rows = c.ranks * c.max_tokens;
  // Capacity in returns. It suffices for both modes: the exact returns of max_tokens tokens, or the
  // fixed-size returns of fixed_tokens tokens.
  const int64_t returns =
      std::max(c.max_tokens * ReturnsOfToken(c), c.ranks * plan.fixed_tokens * ReturnsFromRank(c));
  const auto add = [&](int64_t bytes) {
    const int64_t begin = plan.bytes;
    plan.bytes += RoundUp(bytes);
    return begin;
  };
  plan.boxes = add(c.ranks * plan.send_buffer_bytes);
  plan.tags = add(c.ranks * plan.tag_bytes);
  plan.rows = add(rows * lone.row_stride);
  plan.ids = add(rows * c.top_k * 4);
  plan.weights = add(c.sum_by_rank ? rows * c.top_k * 4 : 0);
  plan.first_return = add(rows * 4);
  plan.place = add(c.max_tokens * ReturnsOfToken(c) * 4);
  plan.returned = add(returns * lone.combined_bytes);
  plan.counts = add(sizeof(NcclCounts));
  return plan;
}

}  // namespace switchyard::cuda
