#include <algorithm>

#include "core/error.h"
#include "model/rank_device.h"
#include "moe/backends.h"
#include "moe/gpu_options.h"

namespace switchyard {

std::unique_ptr<RankDevice> MakeCudaRankDevice(const ModelConfig&, const ModelOptions&, RankComm&) {
  throw Invalid("this build of switchyard has no CUDA; use --device cpu, or build with nvcc");
}

// For plans of GPUs in a build without CUDA: an estimate of the two large buffers of an exchange.
// These are a segment of rows from each source, and one output row for each slot of a token.
size_t CudaPeerBytes(const ModelConfig& config, const ModelOptions& options,
                     const MeshShape& mesh) {
  if (!config.has_moe() || options.moe.host_experts) return 0;
  MoeOptions moe = options.moe;
  moe.row_dtype = options.dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
  const MoeShape shape = MoeShapeOf(config, options.max_pass_tokens);
  const GpuMoeBackends builtin = BuiltinGpuBackends();
  const GpuMoeBackends& backends = options.backends ? options.backends->gpus : builtin;
  cuda::CheckGpuOptions(moe, shape, mesh, backends);
  const ExchangeShape exchange = ExchangeShapeOf(moe, shape, mesh);
  const cuda::GpuExchangeBackend& backend = backends.exchanges.Find(moe.a2a_backend);
  if (!backend.make || mesh.ep == 1) return 0;
  const cuda::ExchangeModes modes = backend.modes
                                        ? backend.modes(moe, exchange)
                                        : cuda::ExchangeModes{.normal_tokens = exchange.max_tokens};
  const auto bytes = [&](int64_t tokens) {
    const int64_t row = exchange.row_format.Bytes(exchange.hidden) + 8 * exchange.k;
    const auto output = static_cast<int64_t>(SizeOf(exchange.output_dtype)) * exchange.hidden;
    return static_cast<size_t>(tokens * (mesh.ep * row + exchange.k * output));
  };
  return moe.passes * (bytes(modes.normal_tokens) + bytes(modes.low_latency_tokens));
}

}  // namespace switchyard
