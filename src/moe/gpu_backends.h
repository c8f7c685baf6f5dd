// The registries of exchanges, runners and permutes that form the MoE path of ranks on GPUs.
//
// The interfaces are in moe/cuda, since they use CUDA's headers: RowExchange (row_exchange.h),
// GpuRunner (gpu_runner.h) and the parameters of GpuPermute (expert_rows.h). A build
// without CUDA registers the same names, but their factories throw Error kInvalid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "moe/options.h"
#include "moe/permute/permute.h"
#include "moe/registry.h"

struct CUstream_st;

namespace switchyard {

class Collectives;
class ExpertMap;
struct ExchangeShape;

namespace cuda {

class GpuRunner;
class PeerMemory;
class RowExchange;
struct ExchangeConfig;
struct PdlStream;
struct PermuteRowsParams;
struct RowOrderParams;

// The modes of an exchange. The value for each mode is the maximum tokens of one rank in one round;
// 0: the exchange does not have the mode. If both modes exist, low latency is used for batches of
// decode rows only.
struct ExchangeModes {
  int64_t normal_tokens = 0, low_latency_tokens = 0;
};

// Arguments of an exchange. All outlive it, except for `config`.
struct GpuExchangeContext {
  const ExchangeConfig& config;  // configuration for one mode
  const ExpertMap& experts;
  PeerMemory& peers;
  Collectives* group = nullptr;  // the EP group; uses NCCL if `spans_hosts`
  bool spans_hosts = false;      // whether the ranks of the group are on several hosts
};

// A value of --moe-a2a-backend. If `make` is not set, rows are not exchanged: every rank computes
// the sums of its own experts for all tokens, and collectives add these sums.
struct GpuExchangeBackend {
  // Error kInvalid if the options are incompatible.
  std::function<ExchangeModes(const MoeOptions&, const ExchangeShape&)> modes;
  // Bytes of peer memory that `make` allocates on each rank.
  std::function<size_t(const ExchangeConfig&, bool spans_hosts)> peer_bytes;
  // Constructs an exchange for one mode, for the current device. Called on all ranks in the same
  // order.
  std::function<std::unique_ptr<RowExchange>(const GpuExchangeContext&)> make;
  std::string summary;            // for `switchyard backends`
  bool combines_by_rank = false;  // supports --moe-combine-rows rank
};

// A value of --moe-runner-backend.
struct GpuRunnerBackend {
  std::function<std::unique_ptr<GpuRunner>()> make;
  std::string summary;
};

// The conversion from a dispatch layout to a runner layout. Its members are plain functions without
// state that enqueue kernels. Combine reads the outputs in the runner's layout, so there is no
// post-permute.
struct GpuPermute {
  // Computes the position of each dispatched row in the runner's layout.
  void (*order)(const RowOrderParams& p, CUstream_st* stream) = nullptr;
  // Copies the rows of a chunk to their positions, converted to the runner's input type.
  void (*copy)(const PermuteRowsParams& p, const PdlStream& chain) = nullptr;
  // Whether a kernel that also selects the experts may compute the positions. It then replaces
  // `order` (select_and_order.h).
  bool joins_selection = false;
};

}  // namespace cuda

struct GpuMoeBackends {
  Registry<cuda::GpuExchangeBackend> exchanges{"--moe-a2a-backend"};
  Registry<cuda::GpuRunnerBackend> runners{"--moe-runner-backend"};
  std::string auto_runner = "grouped_mlp";  // the runner that --moe-runner-backend auto selects
  PermuteTableOf<cuda::GpuPermute> permutes;
};

// The backends of this build.
GpuMoeBackends BuiltinGpuBackends();

// The functions of the built-in backends. Builds without CUDA use those of moe/no_cuda, which throw
// Error kInvalid.
struct GpuFactories {
  decltype(cuda::GpuExchangeBackend::make) deepep;
  decltype(cuda::GpuExchangeBackend::peer_bytes) deepep_peer_bytes;
  decltype(cuda::GpuRunnerBackend::make) grouped_mlp, masked_mlp;
  // Converts any dispatch layout to rows ordered by expert. Both runner layouts are views of this
  // order: offsets and counts, or blocks of one expert.
  cuda::GpuPermute order_by_expert;
};
GpuFactories BuiltinGpuFactories();

}  // namespace switchyard
