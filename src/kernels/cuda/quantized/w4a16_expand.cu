// Problem: dequantizes packed 4-bit weights [groups, n, k] (layout and source: w4a16_layout.h) to
// bfloat16, with the unpacking code of the GEMM. For tests.
// Tiling: one block of 128 threads per tile of 64 × 64 weights. Pipeline: none. Not measured.
#include "core/cuda/runtime.h"
#include "kernels/cuda/quantized/w4a16_gemm.h"
#include "kernels/cuda/quantized/w4a16_unpack.cuh"

namespace switchyard::cuda {
namespace {

struct Matrices {
  const uint8_t* records;
  const float* globals;
  uint16_t* to;
  int64_t n, k;
};

// One block of 128 threads per 64 × 64 tile. Grid: x along K, y along rows, z the group.
template <W4A16Kind kKind, int kScales>
__global__ void __launch_bounds__(kW4A16Threads) Expand(const Matrices m) {
  const int64_t row_tile = int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
  W4A16Tile<kKind, kScales> tile;
  tile.Load(m.records + (row_tile * gridDim.x + blockIdx.x) * W4A16RecordBytes(kKind, kScales),
            threadIdx.x, kKind == W4A16Kind::kNvfp4 ? m.globals[row_tile] : 0.0f);
#pragma unroll
  for (int run = 0; run < 4; ++run) {
    uint32_t a[4];
    tile.Unpack(run, a);
#pragma unroll
    for (int slot = 0; slot < 4; ++slot) {
      const int64_t row = int64_t{blockIdx.y} * kW4A16Tile + W4A16RowOf(threadIdx.x, slot);
      const int64_t column =
          int64_t{blockIdx.x} * kW4A16Tile + run * kW4A16Run + W4A16ColumnOf(threadIdx.x, slot);
      uint16_t* to = m.to + (int64_t{blockIdx.z} * m.n + row) * m.k + column;
      if (row < m.n && column < m.k) to[0] = static_cast<uint16_t>(a[slot]);
      if (row < m.n && column + 1 < m.k) to[1] = static_cast<uint16_t>(a[slot] >> 16);
    }
  }
}

template <W4A16Kind kKind, int kScales>
void Start(const W4A16ExpandParams& p, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(W4A16ColumnTiles(p.k)),
                    static_cast<unsigned>(W4A16RowTiles(p.n)), static_cast<unsigned>(p.groups));
  Expand<kKind, kScales><<<blocks, kW4A16Threads, 0, stream>>>(
      {static_cast<const uint8_t*>(p.records), p.globals, static_cast<uint16_t*>(p.to), p.n, p.k});
}

}  // namespace

void ExpandW4A16(const W4A16ExpandParams& p, cudaStream_t stream) {
  if (p.n == 0 || p.k == 0 || p.groups == 0) return;
  switch (p.format.kind) {
    case W4A16Kind::kMxfp4:
      Start<W4A16Kind::kMxfp4, 2>(p, stream);
      break;
    case W4A16Kind::kNvfp4:
      Start<W4A16Kind::kNvfp4, 4>(p, stream);
      break;
    case W4A16Kind::kInt4:
      p.format.scales == 1   ? Start<W4A16Kind::kInt4, 1>(p, stream)
      : p.format.scales == 2 ? Start<W4A16Kind::kInt4, 2>(p, stream)
                             : Start<W4A16Kind::kInt4, 4>(p, stream);
      break;
  }
  Check(cudaGetLastError(), "dequantization of 4-bit weights");
}

}  // namespace switchyard::cuda
