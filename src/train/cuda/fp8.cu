// Quantization of the operands of FP8 products (fp8.h).
//
// Problem: each kernel reads bfloat16 once and writes half of the bytes.
// Tiling: rows: a warp has four blocks of 128 elements, four per lane. Columns and weights: a block
// of threads has a tile of 128 rows and 64 or 128 columns in registers, and transposes the codes
// in shared memory.
#include "core/cuda/runtime.h"
#include "kernels/cuda/quantized/fp8.cuh"
#include "train/cuda/fp8.h"
#include "train/cuda/launch.cuh"
#include "train/cuda/products_tiles.cuh"
#include "train/cuda/refuse.h"

namespace switchyard::train::gpu {
namespace {

using switchyard::cuda::EncodeFp8;
using switchyard::cuda::LargestOf;
using switchyard::cuda::MagnitudeBits;

constexpr int kQuantizeThreads = 256, kWarps = kQuantizeThreads / kWarp;
constexpr int kBlock = static_cast<int>(kScaleBlock);

// The scale of elements whose largest magnitude has these bits.
__device__ __forceinline__ float PowerScaleOf(int largest) {
  constexpr int kSmallest = 127 - 64;  // biased exponents
  if (largest >= 0x7f800000) return __int_as_float(largest);
  const int exponent = (largest + 0x1fffff) >> 23;
  return __int_as_float((max(exponent, kSmallest + 8) - 8) << 23);
}
__device__ __forceinline__ float Inverse(float scale) { return __fdiv_rn(1.0f, scale); }

// Eight elements of a row.
struct Eight {
  float x[8];
};
__device__ __forceinline__ Eight LoadEight(const uint16_t* from, bool there) {
  const uint4 bits = there ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
  return {{Low(bits.x), High(bits.x), Low(bits.y), High(bits.y), Low(bits.z), High(bits.z),
           Low(bits.w), High(bits.w)}};
}

// --- rows ---

constexpr int kPerWarp = 4;  // blocks of 128 elements

struct RowsArguments {
  const uint16_t* x;
  uint8_t* codes;
  float* scales;
  const int32_t* valid_rows;
  int64_t rows, row_step, block_step;  // steps of the scales
  uint32_t blocks;                     // of a row
};

__global__ void __launch_bounds__(kQuantizeThreads) QuantizeRowsKernel(RowsArguments p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t first =
      (blockIdx.x * kWarps + threadIdx.x / kWarp) * static_cast<uint32_t>(kPerWarp);
  const int64_t rows = p.valid_rows != nullptr ? int64_t{*p.valid_rows} : p.rows;
  const auto count = static_cast<uint32_t>(rows * p.blocks);
  uint2 bits[kPerWarp];
#pragma unroll
  for (int i = 0; i < kPerWarp; ++i)
    if (first + i < count)
      bits[i] = *reinterpret_cast<const uint2*>(p.x + int64_t{first + i} * kBlock + lane * 4);
#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) {
    const uint32_t block = first + i;
    if (block >= count) return;
    const float4 v = make_float4(Low(bits[i].x), High(bits[i].x), Low(bits[i].y), High(bits[i].y));
    const float scale = PowerScaleOf(switchyard::cuda::WarpMax(LargestOf(v)));
    const float inverse = Inverse(scale);
    *reinterpret_cast<uint32_t*>(p.codes + int64_t{block} * kBlock + lane * 4) =
        EncodeFp8(v.x * inverse, v.y * inverse, v.z * inverse, v.w * inverse);
    if (lane == 0)
      p.scales[block / p.blocks * p.row_step + block % p.blocks * p.block_step] = scale;
  }
}

__global__ void __launch_bounds__(kQuantizeThreads)
    DecodeRowsKernel(const uint8_t* codes, const float* scales, int64_t count, uint16_t* x) {
  const int64_t i = (int64_t{blockIdx.x} * kQuantizeThreads + threadIdx.x) * 4;
  if (i >= count) return;
  const float scale = scales[i / kBlock];
  const uint32_t four = *reinterpret_cast<const uint32_t*>(codes + i);
  float v[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) v[j] = switchyard::cuda::DecodeFp8(four >> 8 * j) * scale;
  *reinterpret_cast<uint2*>(x + i) = make_uint2(PackPair(v[0], v[1]), PackPair(v[2], v[3]));
}

// --- columns ---

constexpr int kColumns = 64;  // of a block of threads

struct ColumnsShared {
  uint32_t codes[kColumns][kBlock / 4 + 1];
  int largest[kWarps][kColumns];
  float scales[kColumns];
  int32_t first_tile[kMaxProductGroups + 1];
};

// Block (x, y): 64 columns, and 128 padded rows.
__global__ void __launch_bounds__(kQuantizeThreads)
    QuantizeColumnsKernel(products::Arguments p, const uint16_t* x, int64_t width, int64_t padded,
                          uint8_t* codes, float* scales) {
  static_assert(products::kBlockM == kBlock);  // tiles of first_tile are blocks of rows
  __shared__ ColumnsShared shared;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int64_t first_column = int64_t{blockIdx.x} * kColumns;
  const int tile = static_cast<int>(blockIdx.y);
  if (warp == 0) products::CountRowTiles(p, lane, shared.first_tile);
  __syncthreads();
  if (tile >= shared.first_tile[p.groups]) return;
  const int group = products::GroupOfTile(shared.first_tile, p.groups, tile);
  const int64_t end = products::BeginOf(p, group + 1);
  // This thread has four rows and eight columns.
  const int chunk = thread % 8 * 8;
  const int64_t row = products::BeginOf(p, group) +
                      int64_t{tile - shared.first_tile[group]} * kBlock + thread / 8 * 4;
  Eight v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    v[i] = LoadEight(x + (row + i) * width + first_column + chunk, row + i < end);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    int largest = LargestOf(make_float4(v[0].x[j], v[1].x[j], v[2].x[j], v[3].x[j]));
    largest = max(largest, __shfl_xor_sync(~0u, largest, 8));
    largest = max(largest, __shfl_xor_sync(~0u, largest, 16));
    if (lane < 8) shared.largest[warp][chunk + j] = largest;
  }
  __syncthreads();
  if (thread < kColumns) {
    int largest = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = max(largest, shared.largest[w][thread]);
    const float scale = PowerScaleOf(largest);
    shared.scales[thread] = scale;
    scales[tile * width + first_column + thread] = scale;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float inverse = Inverse(shared.scales[chunk + j]);
    shared.codes[chunk + j][thread / 8] = EncodeFp8(v[0].x[j] * inverse, v[1].x[j] * inverse,
                                                    v[2].x[j] * inverse, v[3].x[j] * inverse);
  }
  __syncthreads();
  for (int column = warp; column < kColumns; column += kWarps)
    *reinterpret_cast<uint32_t*>(codes + (first_column + column) * padded + int64_t{tile} * kBlock +
                                 lane * 4) = shared.codes[column][lane];
}

// --- weights ---

// Bytes i of a, b, c and d.
__device__ __forceinline__ uint4 TransposedBytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t low_ab = __byte_perm(a, b, 0x5140), low_cd = __byte_perm(c, d, 0x5140);
  const uint32_t high_ab = __byte_perm(a, b, 0x7362), high_cd = __byte_perm(c, d, 0x7362);
  return make_uint4(__byte_perm(low_ab, low_cd, 0x5410), __byte_perm(low_ab, low_cd, 0x7632),
                    __byte_perm(high_ab, high_cd, 0x5410), __byte_perm(high_ab, high_cd, 0x7632));
}

// Block (x, y): columns [128 x, 128 (x + 1)) and rows [128 y, 128 (y + 1)) of all weights as one
// matrix [groups · n, k].
__global__ void __launch_bounds__(kQuantizeThreads)
    QuantizeBlocksKernel(const uint16_t* w, int64_t n, int64_t k, Fp8Array out,
                         Fp8Array transposed) {
  __shared__ uint32_t columns[kBlock][kBlock / 4 + 1];
  __shared__ int parts[kWarps];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int64_t row = int64_t{blockIdx.y} * kBlock, column = int64_t{blockIdx.x} * kBlock;
  // This thread has eight rows and eight columns.
  const int mine = thread / 16 * 8, chunk = thread % 16 * 8;
  Eight v[8];
  int largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = LoadEight(w + (row + mine + i) * k + column + chunk, true);
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = max(largest, MagnitudeBits(v[i].x[j]));
  }
  largest = switchyard::cuda::WarpMax(largest);
  if (lane == 0) parts[warp] = largest;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarps; ++i) largest = max(largest, parts[i]);
  const float scale = PowerScaleOf(largest), inverse = Inverse(scale);
  const int64_t group = row / n, in_group = row % n;
  if (thread == 0) {
    const int64_t along = k / kBlock, across = n / kBlock;
    out.scales[row / kBlock * along + column / kBlock] = scale;
    transposed.scales[group * across * along + column / kBlock * across + in_group / kBlock] =
        scale;
  }
  uint2 codes[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float* x = v[i].x;
    codes[i] =
        make_uint2(EncodeFp8(x[0] * inverse, x[1] * inverse, x[2] * inverse, x[3] * inverse),
                   EncodeFp8(x[4] * inverse, x[5] * inverse, x[6] * inverse, x[7] * inverse));
    *reinterpret_cast<uint2*>(out.codes + (row + mine + i) * k + column + chunk) = codes[i];
  }
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const uint4 first = TransposedBytes(codes[i].x, codes[i + 1].x, codes[i + 2].x, codes[i + 3].x);
    const uint4 last = TransposedBytes(codes[i].y, codes[i + 1].y, codes[i + 2].y, codes[i + 3].y);
    const uint32_t words[8] = {first.x, first.y, first.z, first.w, last.x, last.y, last.z, last.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) columns[chunk + j][(mine + i) / 4] = words[j];
  }
  __syncthreads();
  uint8_t* const to = transposed.codes + group * n * k + in_group + lane * 4;
  for (int j = warp; j < kBlock; j += kWarps)
    *reinterpret_cast<uint32_t*>(to + (column + j) * n) = columns[j][lane];
}

const uint16_t* Bits(const BF16* x) { return reinterpret_cast<const uint16_t*>(x); }

void CheckWidth(int64_t width) {
  if (width % kScaleBlock != 0)
    Refuse("FP8 rows of {} elements: want a multiple of {}", {width, kScaleBlock});
}

void StartRows(const Fp8Rows& s, const BF16* x, const Fp8Array& out, int64_t row_step,
               int64_t block_step, Stream stream) {
  CheckWidth(s.width);
  const int64_t count = s.rows * (s.width / kScaleBlock);
  if (count >= int64_t{1} << 31)
    Refuse("FP8 quantization of {} rows of {} elements: too large for one launch",
           {s.rows, s.width});
  const RowsArguments p = {.x = Bits(x),
                           .codes = out.codes,
                           .scales = out.scales,
                           .valid_rows = s.valid_rows,
                           .rows = s.rows,
                           .row_step = row_step,
                           .block_step = block_step,
                           .blocks = static_cast<uint32_t>(s.width / kScaleBlock)};
  Launch("quantization of rows", QuantizeRowsKernel, Grid(CeilDiv(count, kWarps * kPerWarp)),
         kQuantizeThreads, 0, stream, p);
}

}  // namespace

void QuantizeRows(const Fp8Rows& s, const BF16* x, const Fp8Array& out, Stream stream) {
  StartRows(s, x, out, 1, Fp8RowStride(s.rows), stream);
}

void QuantizeTransitRows(const Fp8Rows& s, const BF16* x, const Fp8Array& out, Stream stream) {
  StartRows(s, x, out, s.width / kScaleBlock, 1, stream);
}

void DecodeTransitRows(const Fp8Rows& s, const Fp8Operand& rows, BF16* x, Stream stream) {
  CheckWidth(s.width);
  const int64_t count = s.rows * s.width;
  Launch("decoding of rows", DecodeRowsKernel, Grid(CeilDiv(count, 4 * kQuantizeThreads)),
         kQuantizeThreads, 0, stream, rows.codes, rows.scales, count,
         reinterpret_cast<uint16_t*>(x));
}

void QuantizeColumns(const ProductShape& s, const BF16* x, int64_t width, const Fp8Array& out,
                     Stream stream) {
  CheckWidth(width);
  if (s.groups < 1 || s.groups > kMaxProductGroups)
    Refuse("quantization of {} groups, want 1 to {}", {s.groups, kMaxProductGroups});
  const int64_t padded = Fp8PaddedRows(s.rows, s.groups);
  if (padded / kScaleBlock > 65535)
    Refuse("quantization of the columns of {} rows: too large for one launch", {s.rows});
  const products::Arguments p = {.begins = s.begins, .groups = s.groups, .rows = s.rows};
  Launch("quantization of columns", QuantizeColumnsKernel,
         Grid(width / kColumns, padded / kScaleBlock), kQuantizeThreads, 0, stream, p, Bits(x),
         width, padded, out.codes, out.scales);
}

void QuantizeBlocks(const ProductShape& s, const BF16* w, const Fp8Array& out,
                    const Fp8Array& transposed, Stream stream) {
  CheckWidth(s.n);
  CheckWidth(s.k);
  if (!switchyard::cuda::IsHopper()) Refuse("FP8 products need a Hopper GPU (sm_{})", {90});
  const int64_t row_blocks = s.groups * s.n / kScaleBlock;
  if (row_blocks > 65535)
    Refuse("quantization of {} weights of {} outputs: too large for one launch", {s.groups, s.n});
  Launch("quantization of weights", QuantizeBlocksKernel, Grid(s.k / kScaleBlock, row_blocks),
         kQuantizeThreads, 0, stream, Bits(w), s.n, s.k, out, transposed);
}

}  // namespace switchyard::train::gpu
