#include "core/error.h"
#include "model/rank_device.h"

namespace switchyard {

std::unique_ptr<RankDevice> MakeCudaRankDevice(const ModelConfig&, const ModelOptions&, RankComm&) {
  throw Invalid("this build of switchyard has no CUDA");
}

size_t CudaPeerBytes(const ModelConfig&, const ModelOptions&, const MeshShape&) { return 0; }

}  // namespace switchyard
