#include "train/exchange/expert_exchange.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "moe/dispatchers/builtin.h"

namespace switchyard::train {
namespace {

bool Exchanges(size_t group_size, const ModelConfig& config) {
  return group_size > 1 && config.has_moe();
}

// A row has the elements of a token, followed by its k router weights.
ExchangeShape ShapeOf(int group_size, const ModelConfig& config,
                      const ExpertExchangeOptions& options) {
  const RouterConfig& router = config.moe->router;
  CHECK_EQ(options.element_bytes % sizeof(float), 0u);
  const auto words = static_cast<int64_t>(options.element_bytes / sizeof(float));
  return {.hidden = (config.hidden + router.top_k) * words,
          .k = router.top_k,
          .num_experts = router.num_experts,
          .local_experts = EvenPart(router.num_experts, group_size, 0).size(),
          .max_tokens = options.tokens,
          .ep = group_size};
}

PassRounds RoundsOf(const ExpertExchangeOptions& options) {
  return {.dispatch_tokens = options.tokens, .combine_tokens = options.tokens};
}

}  // namespace

ExpertExchange::ExpertExchange(SymmetricMemory& memory, std::vector<int> group,
                               const ModelConfig& config, const ExpertExchangeOptions& options,
                               ThreadPool& pool) {
  const auto self = std::ranges::find(group, memory.rank());
  CHECK(self != group.end());
  const auto size = static_cast<int>(group.size());
  ranks_ = {.rank = static_cast<int>(self - group.begin()), .size = size};
  if (!Exchanges(group.size(), config)) return;
  experts_ = std::make_unique<ExpertMap>(config.moe->router.num_experts, size,
                                         /*shared_dispatched=*/false);
  dispatcher_ = MakeDeepEpNormal(memory, std::move(group), RoundsOf(options),
                                 ShapeOf(size, config, options), *experts_, pool,
                                 {.slots = options.in_flight, .pairwise = options.synchronous});
  ranks_.dispatcher = dispatcher_.get();
}

size_t ExpertExchange::BytesPerRank(int group_size, const ModelConfig& config,
                                    const ExpertExchangeOptions& options) {
  if (!Exchanges(static_cast<size_t>(group_size), config)) return 0;
  return DeepEpNormalBytes(RoundsOf(options), ShapeOf(group_size, config, options),
                           options.in_flight);
}

}  // namespace switchyard::train
