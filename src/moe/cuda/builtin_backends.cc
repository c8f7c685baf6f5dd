#include "moe/cuda/builtin_backends.h"

#include <span>

#include "core/cuda/runtime.h"
#include "moe/cuda/dispatchers/exchange.h"
#include "moe/cuda/dispatchers/nccl_exchange.h"
#include "moe/cuda/permute/expert_rows.h"

namespace switchyard {
namespace cuda {
namespace {

// Grid size of exchange kernels if ranks share a GPU, as in tests. Kernels of these ranks wait for
// one another, so they must run at the same time. The grid is small so that all of them fit on the
// GPU.
constexpr int kBlocksOfSharedGpu = 8;

void Order(const RowOrderParams& p, cudaStream_t stream) {
  Check(OrderRows(p, stream), "order of rows by expert");
}

void Copy(const PermuteRowsParams& p, const PdlStream& chain) {
  Check(PermuteRows(p, chain), "permute of rows");
}

}  // namespace

std::unique_ptr<RowExchange> MakeDeepEpExchange(const GpuExchangeContext& context) {
  ExchangeConfig config = context.config;
  if (context.spans_hosts)
    return std::make_unique<NcclExchange>(config, context.experts, context.peers,
                                          NcclGroup::From(context.group));
  const std::span ranks(config.world_ranks, static_cast<size_t>(config.ranks));
  if (!context.peers.HasDistinctGpus(ranks)) config.blocks = kBlocksOfSharedGpu;
  return std::make_unique<Exchange>(config, context.experts, context.peers);
}

size_t DeepEpPeerBytes(const ExchangeConfig& config, bool spans_hosts) {
  return spans_hosts ? NcclExchange::PeerBytes(config) : Exchange::PeerBytes(config);
}

GpuPermute OrderByExpert() { return {.order = Order, .copy = Copy, .joins_selection = true}; }

}  // namespace cuda

GpuFactories BuiltinGpuFactories() {
  return {.deepep = cuda::MakeDeepEpExchange,
          .deepep_peer_bytes = cuda::DeepEpPeerBytes,
          .grouped_mlp = cuda::MakeGroupedMlp,
          .masked_mlp = cuda::MakeMaskedMlp,
          .order_by_expert = cuda::OrderByExpert()};
}

}  // namespace switchyard
