// Prefill attention with wgmma on Hopper: bit-identical to the mma.sync kernels, but faster. Head
// sizes 64 and 128 use the kernel of attention_prompt.cuh: tiles of 128 query rows by 64 keys.
// Latent attention uses the kernel of attention_tile.cuh: tiles of 64 query rows by 64 keys, and
// two warpgroups with half of the 512 value columns each.
//
// Grid: attention_start.cuh. Source: FlashAttention-3 (attention_prompt.cuh).
#include "kernels/cuda/attention/attention_prompt.cuh"
#include "kernels/cuda/attention/attention_start.cuh"
#include "kernels/cuda/device/launch.h"

namespace switchyard::cuda {
namespace {

template <int kHeadDim, bool kCodes>
struct PromptKernel {
  using Shape = PromptShape<kHeadDim, kHeadDim == 64 ? 6 : 4, kCodes>;
  static constexpr auto kFunction = PromptAttentionKernel<Shape>;
  static constexpr int kBytes = sizeof(PromptShared<Shape>);
  static constexpr bool kPersistent = true;
};

// Codes are converted on their way to shared memory, so TMA does not copy them.
template <typename Shape>
PromptMaps MapsOf(const AttentionLaunch& launch) {
  if constexpr (Shape::kCodes) return {};
  const int page = launch.table.page_size, box = std::min(page, Shape::kKeys);
  if (box < 16 || page % box != 0 || Shape::kKeys % box != 0) return {};
  // The number of slots is not known here; the page table bounds all accesses.
  const int64_t slots = INT_MAX, columns = int64_t{launch.kv_heads} * Shape::kQkDim;
  PromptMaps maps = {.k = MakeTensorMap(launch.k, slots, columns, 2, box, 64),
                     .v = MakeTensorMap(launch.v, slots, columns, 2, box, 64),
                     .box_keys = box};
  // A tile has whole queries: all heads of a key-value head.
  const int group = launch.heads / launch.kv_heads;
  maps.has_q = launch.bf16_queries && Shape::kRows % group == 0;
  if (maps.has_q)
    maps.q = MakeVectorTensorMap(launch.q, launch.table.num_rows, launch.heads, Shape::kQkDim,
                                 launch.ldq * 4, Shape::kQkDim * 4, Shape::kRows / group, group);
  return maps;
}

template <int kHeadDim, bool kCodes>
cudaError_t StartPrompts(const AttentionLaunch& launch, int min_rows, const PdlStream& chain) {
  using Kernel = PromptKernel<kHeadDim, kCodes>;
  return StartTilesOf<Kernel>(launch, min_rows, INT_MAX, 1, chain,
                              MapsOf<typename Kernel::Shape>(launch));
}

template <int kHeadDim>
cudaError_t Start(const AttentionLaunch& launch, int min_rows, const PdlStream& chain) {
  return launch.codes() ? StartPrompts<kHeadDim, true>(launch, min_rows, chain)
                        : StartPrompts<kHeadDim, false>(launch, min_rows, chain);
}

template <bool kCodes>
cudaError_t StartLatentPrompts(const AttentionLaunch& launch, int min_rows,
                               const PdlStream& chain) {
  using Shape = TileShape<576, 512, true, 4, 2, 2, true, kCodes>;
  return StartTiles<Shape>(launch, min_rows, INT_MAX, 2, chain);
}

}  // namespace

cudaError_t StartHopperAttention(const AttentionLaunch& launch, int min_rows,
                                 const PdlStream& chain) {
  return launch.qk_dim == 64 ? Start<64>(launch, min_rows, chain)
                             : Start<128>(launch, min_rows, chain);
}

cudaError_t StartHopperLatentAttention(const AttentionLaunch& launch, int min_rows,
                                       const PdlStream& chain) {
  return launch.codes() ? StartLatentPrompts<true>(launch, min_rows, chain)
                        : StartLatentPrompts<false>(launch, min_rows, chain);
}

}  // namespace switchyard::cuda
