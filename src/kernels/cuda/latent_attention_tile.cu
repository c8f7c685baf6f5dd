#include "kernels/cuda/attention_start.cuh"

namespace switchyard::cuda {

cudaError_t StartTiledLatentAttention(const AttentionLaunch& launch, const StreamChain& chain) {
  if (launch.qk_dim != 576 || launch.v_dim != 512) return cudaErrorNotSupported;
  using Small = TileShape<576, 512, true, kLatentSplitKeys, 1, 8, 2>;
  using Large = TileShape<576, 512, true, kLatentSplitKeys, 4, 2, 2>;
  if (!FitsSharedMemory(std::max(Small::kBytes, Large::kBytes))) return cudaErrorNotSupported;
  return StartTilesOfBothShapes<Small>(launch, chain, [&](int min_rows) {
    return launch.hopper ? StartHopperLatentAttention(launch, min_rows, chain)
                         : StartTiles<Large>(launch, min_rows, INT_MAX, 2, chain);
  });
}

}  // namespace switchyard::cuda
