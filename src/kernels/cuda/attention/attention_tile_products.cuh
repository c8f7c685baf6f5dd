// Matrix products of the attention tiles, with mma.sync and with wgmma.
#pragma once

#include "kernels/cuda/attention/attention_ptx.cuh"
#include "kernels/cuda/attention/attention_tile_shape.cuh"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace switchyard::cuda {

constexpr uint32_t kBf16Ones = 0x3f803f80;

// A thread's fragment of 16 rows × kWarpKeys keys, in groups of eight keys with mma.sync's
// accumulator layout.
template <typename Shape>
using TileScores = float[Shape::kWarpKeys / 2];

// scores = q · kᵀ for this warp's rows and keys.
template <typename Shape>
__device__ __forceinline__ void Score(const TileThread<Shape>& thread, uint32_t shared,
                                      uint32_t stage, TileScores<Shape>& scores) {
#pragma unroll
  for (float& score : scores) score = 0.0f;
  const int key0 = thread.FirstKey();
#pragma unroll(Shape::kQkDim > 128 && Shape::kWarpKeys > 8 ? 2 : 6)
  for (int k = 0; k < Shape::kQkDim / 16; k += 2) {
    uint32_t q[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      ptx::LoadMatrices(q[i],
                        shared + SwizzledOffset<Shape::kRows>(thread.row0 + thread.lane % 16,
                                                              2 * (k + i) + thread.lane / 16));
    constexpr int kInFlight = Shape::kWarpKeys / 8 < 4 ? Shape::kWarpKeys / 8 : 4;
#pragma unroll
    for (int n = 0; n < Shape::kWarpKeys / 8; n += kInFlight) {
      uint32_t keys[kInFlight][4];  // 8 keys × 32 columns
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        ptx::LoadMatrices(keys[i],
                          stage + SwizzledOffset<Shape::kKeys>(key0 + 8 * (n + i) + thread.lane % 8,
                                                               2 * k + thread.lane / 8));
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        ptx::MmaBf16(scores + 4 * (n + i), q[0], keys[i][0], keys[i][1]);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        ptx::MmaBf16(scores + 4 * (n + i), q[1], keys[i][2], keys[i][3]);
    }
  }
}

// sums += p · v and weights += p · 1 for keys [16 · k, 16 · k + 16).
template <typename Shape>
__device__ __forceinline__ void AccumulateValues(const TileThread<Shape>& thread, uint32_t stage,
                                                 int k, const uint32_t (&p)[4],
                                                 float (&sums)[Shape::kWarpColumns / 2],
                                                 float (&weights)[4]) {
  const uint32_t values = stage + (Shape::kLatent ? 0 : Shape::kKBytes);
  const int piece0 = thread.column_warp * (Shape::kWarpColumns / 8) + thread.lane / 16;
  ptx::MmaBf16(weights, p, kBf16Ones, kBf16Ones);
#pragma unroll
  for (int n = 0; n < Shape::kWarpColumns / 8; n += 2) {
    uint32_t v[4];  // 16 keys × 16 columns
    ptx::LoadMatricesTransposed(
        v, values + SwizzledOffset<Shape::kKeys>(16 * k + thread.lane % 16, piece0 + n));
    ptx::MmaBf16(sums + 4 * n, p, v[0], v[1]);
    ptx::MmaBf16(sums + 4 * n + 4, p, v[2], v[3]);
  }
}

// wgmma descriptor of a K-major panel: the reduction runs along the rows of the panel.
__device__ __forceinline__ uint64_t PanelDescriptor(uint32_t panel) {
  return uint64_t{panel >> 4 & 0x3fff} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}
// wgmma descriptor of MN-major panels of kPanelBytes each: the reduction runs down the columns of
// the panels.
template <int kPanelBytes>
__device__ __forceinline__ uint64_t ColumnsDescriptor(uint32_t panel) {
  return uint64_t{panel >> 4 & 0x3fff} | uint64_t{kPanelBytes >> 4} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
// wgmma descriptor of consecutive 8 × 8 blocks of ones, whose order does not matter.
__device__ __forceinline__ uint64_t OnesDescriptor(uint32_t blocks) {
  return uint64_t{blocks >> 4 & 0x3fff} | uint64_t{128 >> 4} << 16 | uint64_t{128 >> 4} << 32;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Starts q · kᵀ with wgmma, for all keys of the warpgroup's rows, as a separate wgmma group.
template <typename Shape>
__device__ __forceinline__ void EnqueueScores(const TileThread<Shape>& thread, uint32_t queries,
                                              uint32_t stage, TileScores<Shape>& scores) {
  const uint64_t q = PanelDescriptor(queries + thread.row0 / 64 * 64 * 128);
  const uint64_t k = PanelDescriptor(stage);
#pragma unroll
  for (int i = 0; i < Shape::kQkDim / 16; ++i) {
    const int q_at = i / 4 * (Shape::kRows * 128) + i % 4 * 32;
    const int k_at = i / 4 * (Shape::kKeys * 128) + i % 4 * 32;
    ptx::WgmmaBf16(scores, q + (q_at >> 4), k + (k_at >> 4), i > 0);
  }
  ptx::WgmmaCommit();
}

// Starts sums += p · v and weights += p · 1 with wgmma, as a separate wgmma group. `ones_at`:
// shared memory that is filled with ones.
template <typename Shape>
__device__ __forceinline__ void EnqueueValues(const TileThread<Shape>& thread, uint32_t ones_at,
                                              uint32_t stage,
                                              const uint32_t (&p)[Shape::kKeys / 16][4],
                                              float (&sums)[Shape::kWarpColumns / 2],
                                              float (&weights)[4]) {
  const uint64_t v = ColumnsDescriptor<Shape::kKeys * 128>(
      stage + (Shape::kLatent ? 0 : Shape::kKBytes) +
      thread.column_warp * (Shape::kWarpColumns / 64 * Shape::kKeys * 128));
  const uint64_t ones = OnesDescriptor(ones_at);
#pragma unroll
  for (int k = 0; k < Shape::kKeys / 16; ++k) {
    ptx::WgmmaBf16MnMajor(sums, p[k], v + (k * 16 * 128 >> 4), true);
    ptx::WgmmaBf16MnMajor(weights, p[k], ones, true);
  }
  ptx::WgmmaCommit();
}
#endif

// scores = q · kᵀ with wgmma, for all keys of the warpgroup's rows. meanwhile() runs concurrently
// and must not branch.
template <typename Shape>
__device__ __forceinline__ void ScoreByWarpgroup(const TileThread<Shape>& thread, uint32_t shared,
                                                 uint32_t stage, const auto& meanwhile,
                                                 TileScores<Shape>& scores) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::WgmmaFence();
  EnqueueScores(thread, shared, stage, scores);
  meanwhile();
  ptx::WgmmaWait<0>();
  ptx::PinRegisters(scores);
#endif
}

// sums += p · v and weights += p · 1 with wgmma, for all keys of the block. `ones_at`: shared
// memory that is filled with ones.
template <typename Shape>
__device__ __forceinline__ void AddValuesByWarpgroup(const TileThread<Shape>& thread,
                                                     uint32_t ones_at, uint32_t stage,
                                                     const uint32_t (&p)[Shape::kKeys / 16][4],
                                                     float (&sums)[Shape::kWarpColumns / 2],
                                                     float (&weights)[4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::PinRegisters(sums);
  ptx::PinRegisters(weights);
  ptx::WgmmaFence();
  EnqueueValues(thread, ones_at, stage, p, sums, weights);
  ptx::WgmmaWait<0>();
  ptx::PinRegisters(sums);
  ptx::PinRegisters(weights);
#endif
}

}  // namespace switchyard::cuda
