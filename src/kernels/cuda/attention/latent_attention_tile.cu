// Tensor core latent attention (MLA) for head size 512 + 64 with mma.sync. Algorithm and source
// (FlashAttention): attention_tile.cuh; grid: attention_start.cuh. Decode tiles: 16 query rows by
// 64 keys, eight warps that partition the keys and the 512 value columns. Prefill tiles: 64 rows by
// 64 keys, two warps for each 16 rows, or the wgmma tiles of attention_hopper.cu.
#include "kernels/cuda/attention/attention_start.cuh"

namespace switchyard::cuda {
namespace {

template <bool kCodes>
cudaError_t StartLatent(const AttentionLaunch& launch, const PdlStream& chain) {
  using Small = TileShape<576, 512, true, 1, 8, 2, false, kCodes>;
  using Large = TileShape<576, 512, true, 4, 2, 2, false, kCodes>;
  if (!FitsSharedMemory(std::max(Small::kBytes, Large::kBytes))) return cudaErrorNotSupported;
  return StartTilesOfBothShapes<Small>(launch, chain, [&](int min_rows) {
    return launch.hopper ? StartHopperLatentAttention(launch, min_rows, chain)
                         : StartTiles<Large>(launch, min_rows, INT_MAX, 2, chain);
  });
}

}  // namespace

cudaError_t StartTiledLatentAttention(const AttentionLaunch& launch, const PdlStream& chain) {
  if (!HasAttentionTiles(launch.qk_dim, launch.v_dim, /*latent=*/true))
    return cudaErrorNotSupported;
  return launch.codes() ? StartLatent<true>(launch, chain) : StartLatent<false>(launch, chain);
}

}  // namespace switchyard::cuda
