// Stubs of the MoE layer and of the built-in GPU backends, for builds without CUDA.
#include "moe/cuda_moe.h"

#include "core/error.h"
#include "moe/gpu_backends.h"

namespace switchyard {

namespace cuda {
class RowExchange {};
class GpuRunner {};
}  // namespace cuda

namespace {

[[noreturn]] void Refuse() {
  throw Invalid("this build has no CUDA, so MoE layers need --device cpu");
}

}  // namespace

std::shared_ptr<MoeBackend> MakeCudaMoe(const MoeOptions&, const MoeShape&,
                                        const DeviceMoeContext&) {
  Refuse();
}

size_t CudaMoePeerBytes(const MoeOptions&, const MoeShape&, const MeshShape&, DType,
                        const DeviceMoeHosts&, const MoeBackends*) {
  Refuse();
}

GpuFactories BuiltinGpuFactories() {
  const auto runner = []() -> std::unique_ptr<cuda::GpuRunner> { Refuse(); };
  return {.deepep = [](const cuda::GpuExchangeContext&) -> std::unique_ptr<cuda::RowExchange> {
            Refuse();
          },
          .deepep_peer_bytes = [](const cuda::ExchangeConfig&, bool) -> size_t { Refuse(); },
          .grouped_mlp = runner,
          .masked_mlp = runner,
          .order_by_expert = {}};
}

}  // namespace switchyard
