#include "moe/cuda_moe.h"

#include "core/error.h"

namespace switchyard {
namespace {

[[noreturn]] void Refuse() {
  throw Invalid("this build has no CUDA: MoE layers compute on the CPU, --device cpu");
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

}  // namespace switchyard
