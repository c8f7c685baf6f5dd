// float32 GEMM on any GPU: y_h = x_h · Wᵀ or x_h · W. Two kernels: blocks of 8 × 16 outputs for few
// outputs, tiles of 32 × 64 or 128 × 64 outputs for many. Grid (column tiles, row tiles, heads).
// Both have the same reduction order (ops_linear_exact.cuh). Source: the textbook tiled GEMM, with
// split-K in the block for few outputs.
#include "kernels/cuda/gemm/ops_linear_exact.cuh"

namespace switchyard::cuda::ops {
namespace {

template <WeightFormat kFormat, bool kAligned>
cudaError_t Start(const LinearLaunch& p, cudaStream_t stream) {
  const auto heads = static_cast<unsigned>(p.heads);
  const auto blocks = [](int64_t count, int64_t tile) {
    return static_cast<unsigned>(CeilDiv(count, tile));
  };
  // Large tiles read less memory, but need enough outputs for one tile per SM.
  constexpr int64_t kEnoughTiles = 96;
  const int rows = p.m <= 32 ? 32 : 128;
  const dim3 grid(blocks(p.outputs(), kTileN), blocks(p.m, rows), heads);
  if (p.transposed && (p.m <= kFewM || int64_t{grid.x} * grid.y * heads < kEnoughTiles)) {
    const dim3 few_grid(blocks(p.shape.n, kFewN), blocks(p.m, kFewM), heads);
    FewOutputsKernel<kFormat, kAligned><<<few_grid, kFewThreads, 0, stream>>>(p);
    return cudaGetLastError();
  }
  const auto kernel = p.transposed ? (rows == 32 ? TileKernel<kFormat, true, kAligned, 32>
                                                 : TileKernel<kFormat, true, kAligned, 128>)
                                   : (rows == 32 ? TileKernel<kFormat, false, kAligned, 32>
                                                 : TileKernel<kFormat, false, kAligned, 128>);
  kernel<<<grid, kTileThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

template <WeightFormat kFormat>
cudaError_t StartFormat(const LinearLaunch& p, cudaStream_t stream) {
  return CanVectorLoad(p, 4) ? Start<kFormat, true>(p, stream) : Start<kFormat, false>(p, stream);
}

}  // namespace

cudaError_t LinearExact(const LinearLaunch& p, cudaStream_t stream) {
  if (p.m == 0 || p.outputs() == 0 || p.heads == 0) return cudaSuccess;
  switch (p.shape.format) {
    case WeightFormat::kF32:
      return StartFormat<WeightFormat::kF32>(p, stream);
    case WeightFormat::kBF16:
      return StartFormat<WeightFormat::kBF16>(p, stream);
    case WeightFormat::kF16:
      return StartFormat<WeightFormat::kF16>(p, stream);
    case WeightFormat::kFp8Block:
      return StartFormat<WeightFormat::kFp8Block>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace switchyard::cuda::ops
