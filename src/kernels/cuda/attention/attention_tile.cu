// Tensor core attention for head sizes 64 and 128 with mma.sync. Algorithm and source
// (FlashAttention): attention_tile.cuh; grid: attention_start.cuh. Decode tiles: 16 query rows by
// 64 keys, four warps that partition the keys and value columns. Prefill tiles: 64 rows by 64 keys,
// four warps of 16 rows each, or the wgmma tiles of attention_hopper.cu.
#include "kernels/cuda/attention/attention_start.cuh"

namespace switchyard::cuda {
namespace {

template <int kHeadDim>
cudaError_t Start(const AttentionLaunch& launch, const PdlStream& chain) {
  using Small = TileShape<kHeadDim, kHeadDim, false, 1, 4, 2>;
  using Large = TileShape<kHeadDim, kHeadDim, false, 4, 1, 2>;
  if (!FitsSharedMemory(std::max(Small::kBytes, Large::kBytes))) return cudaErrorNotSupported;
  return StartTilesOfBothShapes<Small>(launch, chain, [&](int min_rows) {
    return launch.hopper ? StartHopperAttention(launch, min_rows, chain)
                         : StartTiles<Large>(launch, min_rows, INT_MAX, 1, chain);
  });
}

}  // namespace

cudaError_t StartTiledAttention(const AttentionLaunch& launch, const PdlStream& chain) {
  switch (launch.qk_dim) {
    case 64:
      return Start<64>(launch, chain);
    case 128:
      return Start<128>(launch, chain);
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace switchyard::cuda
