// The exchange, the runners and the permute that this program registers for GPUs.
#pragma once

#include <cstddef>
#include <memory>

#include "moe/cuda/dispatchers/row_exchange.h"
#include "moe/cuda/runners/gpu_runner.h"
#include "moe/gpu_backends.h"

namespace switchyard::cuda {

// The exchange of deepep: over peer memory on one host, over NCCL between hosts.
std::unique_ptr<RowExchange> MakeDeepEpExchange(const GpuExchangeContext& context);
size_t DeepEpPeerBytes(const ExchangeConfig& config, bool spans_hosts);
std::unique_ptr<GpuRunner> MakeGroupedMlp();
std::unique_ptr<GpuRunner> MakeMaskedMlp();
GpuPermute OrderByExpert();

}  // namespace switchyard::cuda
