// Attention with large tiles by wgmma: the same bits as mma.sync's, only faster.
#include "kernels/cuda/attention_start.cuh"

namespace switchyard::cuda {
namespace {

template <int kHeadDim>
cudaError_t Start(const AttentionLaunch& launch, int min_rows, const StreamChain& chain) {
  using Shape =
      TileShape<kHeadDim, kHeadDim, false, kSplitKeys, kHeadDim == 64 ? 4 : 8, 1, 2, true>;
  return StartTiles<Shape>(launch, min_rows, INT_MAX, 1, chain);
}

}  // namespace

cudaError_t StartHopperAttention(const AttentionLaunch& launch, int min_rows,
                                 const StreamChain& chain) {
  return launch.qk_dim == 64 ? Start<64>(launch, min_rows, chain)
                             : Start<128>(launch, min_rows, chain);
}

cudaError_t StartHopperLatentAttention(const AttentionLaunch& launch, int min_rows,
                                       const StreamChain& chain) {
  using Shape = TileShape<576, 512, true, kLatentSplitKeys, 4, 2, 2, true>;
  return StartTiles<Shape>(launch, min_rows, INT_MAX, 2, chain);
}

}  // namespace switchyard::cuda
