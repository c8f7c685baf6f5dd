// Tensor core attention for head sizes 64, 128 and 256, and for keys of 192 with values of 128,
// with mma.sync. Algorithm and source (FlashAttention): attention_tile.cuh; grid:
// attention_start.cuh. Decode tiles: 16 query rows by 64 keys, four warps that partition the keys
// and value columns. Prefill tiles: 64 rows by 64 keys, four warps of 16 rows each (heads of 256:
// two warps for each 16 rows), or the wgmma tiles of attention_hopper.cu, which exist for heads of
// 64 and 128.
#include "kernels/cuda/attention/attention_start.cuh"

namespace switchyard::cuda {
namespace {

template <bool kCodes, int kQkDim, int kVDim = kQkDim>
cudaError_t Start(const AttentionLaunch& launch, const PdlStream& chain) {
  using Small = TileShape<kQkDim, kVDim, false, 1, 4, kCodes ? 3 : 2, false, kCodes>;
  using Large = TileShape<kQkDim, kVDim, false, 4, kVDim <= 128 ? 1 : 2, 2, false, kCodes>;
  if (!FitsSharedMemory(std::max(Small::kBytes, Large::kBytes))) return cudaErrorNotSupported;
  return StartTilesOfBothShapes<Small>(launch, chain, [&](int min_rows) {
    return launch.hopper && kQkDim == kVDim && kQkDim <= 128
               ? StartHopperAttention(launch, min_rows, chain)
               : StartTiles<Large>(launch, min_rows, INT_MAX, 1, chain);
  });
}

template <bool kCodes>
cudaError_t StartOfSize(const AttentionLaunch& launch, const PdlStream& chain) {
  switch (launch.qk_dim) {
    case 64:
      return Start<kCodes, 64>(launch, chain);
    case 128:
      return Start<kCodes, 128>(launch, chain);
    case 256:
      return Start<kCodes, 256>(launch, chain);
    default:
      return Start<kCodes, 192, 128>(launch, chain);
  }
}

}  // namespace

cudaError_t StartTiledAttention(const AttentionLaunch& launch, const PdlStream& chain) {
  if (!HasAttentionTiles(launch.qk_dim, launch.v_dim, /*latent=*/false))
    return cudaErrorNotSupported;
  return launch.codes() ? StartOfSize<true>(launch, chain) : StartOfSize<false>(launch, chain);
}

}  // namespace switchyard::cuda
