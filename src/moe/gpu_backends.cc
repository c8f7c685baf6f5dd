#include "moe/gpu_backends.h"

#include <algorithm>

#include "moe/backends.h"
#include "moe/dispatchers/rounds.h"

namespace switchyard {
namespace {

cuda::ExchangeModes DeepEpModes(const MoeOptions& options, const ExchangeShape& shape) {
  cuda::ExchangeModes modes;
  if (options.deepep_mode != "low_latency") modes.normal_tokens = TokensPerRound(options, shape);
  if (options.deepep_mode != "normal")
    modes.low_latency_tokens =
        std::min<int64_t>(shape.max_tokens, options.max_dispatch_tokens_per_rank);
  return modes;
}

cuda::ExchangeModes NormalMode(const MoeOptions& options, const ExchangeShape& shape) {
  return {.normal_tokens = TokensPerRound(options, shape)};
}

}  // namespace

GpuMoeBackends BuiltinGpuBackends() {
  const GpuFactories factories = BuiltinGpuFactories();
  GpuMoeBackends b;
  b.exchanges.Add("none",
                  {.summary = "collectives: every rank computes its experts for all tokens"});
  const cuda::GpuExchangeBackend deepep = {
      .modes = DeepEpModes,
      .peer_bytes = factories.deepep_peer_bytes,
      .make = factories.deepep,
      .summary = "all-to-all over peer memory, or over NCCL between hosts",
      .combines_by_rank = true};
  b.exchanges.Add("deepep", deepep);
  // Over peer memory, every exchange is one-sided: a source writes rows and routing to the memory
  // of the experts' ranks. So the following names are all deepep's exchange; they differ only in
  // their modes and in whether they combine by rank.
  cuda::GpuExchangeBackend mooncake = deepep;
  mooncake.summary = "deepep's all-to-all; a lost GPU still ends the server";
  b.exchanges.Add("mooncake", mooncake);
  cuda::GpuExchangeBackend normal = deepep;
  normal.modes = NormalMode;
  normal.combines_by_rank = false;
  normal.summary = "one-sided all-to-all for batches of any size, without a low-latency mode";
  b.exchanges.Add("flashinfer", normal);
  normal.summary = "the same stages as flashinfer, with several kernels for each";
  b.exchanges.Add("fused", normal);

  b.runners.Add("grouped_mlp", {.make = factories.grouped_mlp,
                                .summary = "grouped GEMMs over blocks of one expert's rows, or "
                                           "over exact counts if experts have few rows"});
  b.runners.Add("masked_mlp",
                {.make = factories.masked_mlp,
                 .summary = "grouped GEMMs over exact counts, if a batch is one chunk"});

  for (const DispatchLayout from : {DispatchLayout::kStandard, DispatchLayout::kNormal})
    for (const RunnerLayout to : {RunnerLayout::kContiguous, RunnerLayout::kMasked})
      b.permutes.Add(from, to, factories.order_by_expert);
  return b;
}

}  // namespace switchyard
