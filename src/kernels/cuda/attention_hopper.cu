// Prefill attention with wgmma on Hopper. It has the same bits as with mma.sync, but is faster.
// Head sizes 64 and 128: the kernel of attention_prompt.cuh. Latent: that of attention_tile.cuh
// with tiles of 64 query rows by 64 keys, two warpgroups with half of the 512 value columns each.
//
// Grid: attention_start.cuh.
#include "kernels/cuda/attention_prompt.cuh"
#include "kernels/cuda/attention_start.cuh"

namespace switchyard::cuda {
namespace {

template <int kHeadDim>
struct PromptKernel {
  using Shape = PromptShape<kHeadDim, kHeadDim == 64 ? 6 : 4>;
  static constexpr auto kFunction = PromptAttentionKernel<Shape>;
  static constexpr int kBytes = sizeof(PromptShared<Shape>);
  static constexpr bool kPersistent = true;
};

template <int kHeadDim>
cudaError_t Start(const AttentionLaunch& launch, int min_rows, const PdlStream& chain) {
  return StartTilesOf<PromptKernel<kHeadDim>>(launch, min_rows, INT_MAX, 1, chain);
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
