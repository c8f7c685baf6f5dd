// Prefill attention with wgmma on Hopper: the kernel of attention_tile.cuh with large tiles. It has
// the same bits as with mma.sync, but is faster. A tile has 64 keys and:
//
//   head size 64   64 query rows
//   head size 128  128 query rows
//   latent         64 query rows, two warpgroups with half of the 512 value columns each
//
// Grid: attention_start.cuh.
#include "kernels/cuda/attention_start.cuh"

namespace switchyard::cuda {
namespace {

template <int kHeadDim>
cudaError_t Start(const AttentionLaunch& launch, int min_rows, const PdlStream& chain) {
  using Shape = TileShape<kHeadDim, kHeadDim, false, kHeadDim == 64 ? 4 : 8, 1, 2, true>;
  return StartTiles<Shape>(launch, min_rows, INT_MAX, 1, chain);
}

}  // namespace

cudaError_t StartHopperAttention(const AttentionLaunch& launch, int min_rows,
                                 const PdlStream& chain) {
  return launch.qk_dim == 64 ? Start<64>(launch, min_rows, chain)
                             : Start<128>(launch, min_rows, chain);
}

cudaError_t StartHopperLatentAttention(const AttentionLaunch& launch, int min_rows,
                                       const PdlStream& chain) {
  using Shape = TileShape<576, 512, true, 4, 2, 2, true>;
  return StartTiles<Shape>(launch, min_rows, INT_MAX, 2, chain);
}

}  // namespace switchyard::cuda
