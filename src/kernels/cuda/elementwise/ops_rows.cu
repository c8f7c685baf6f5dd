// Problem: row and elementwise ops: embedding lookup, KV cache store, row copy, moves of rows, add,
// product with a sigmoid, clamp, gather of tokens, clearing of entries, rotary embedding (Su et al.
// 2021).
// Tiling: a thread takes four elements of a row (clamp, gather and clearing: one element; rotary:
// one pair). Grid-stride loops with at most 132 · 32 blocks of 256 threads; the gather has one
// thread per token. In moves, a thread takes the same 16 bytes of all rows of an array.
// Pipeline: none. Measured: not measured alone.
#include <algorithm>

#include "kernels/cuda/elementwise/ops_elements.cuh"
#include "kernels/cuda/elementwise/ops_rotate.cuh"
#include "kernels/cuda/elementwise/ops_rows.h"
#include "kernels/cuda/elementwise/store_codes.cuh"

namespace switchyard::cuda::ops {
namespace {

constexpr int kThreads = 256;

// Number of blocks for `items` work items, one per thread; kernels use grid-stride loops.
unsigned Blocks(int64_t items) {
  return static_cast<unsigned>(std::min<int64_t>(CeilDiv(items, kThreads), 132 * 32));
}

// Calls body(row, column) for each group of four columns.
template <typename Body>
__device__ __forceinline__ void ForRuns(int64_t rows, int64_t columns, const Body& body) {
  const int64_t runs = (columns + 3) / 4, step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows * runs; i += step) {
    body(i / runs, i % runs * 4);
  }
}

template <WeightFormat kFormat, bool kAligned>
__global__ void EmbedKernel(const int32_t* ids, int64_t m, WeightArg w, WeightShape shape,
                            int32_t first, float scale, float* out) {
  ForRuns(m, shape.k, [&](int64_t t, int64_t column) {
    const int64_t row = int64_t{ids[t]} - first;
    float4 v = {0, 0, 0, 0};
    if (row >= 0) v = LoadWeight4<kFormat, kAligned>(w, shape, row, column);
    v.x *= scale, v.y *= scale, v.z *= scale, v.w *= scale;
    StoreRow4<kAligned>(out + t * shape.k, column, shape.k, v);
  });
}

template <WeightFormat kFormat>
cudaError_t EmbedAs(const kernels::EmbedParams& p, cudaStream_t stream) {
  const WeightArg w = WeightArgOf(p.w);
  const WeightShape shape = ShapeOf(p.w);
  const bool aligned = CanVectorLoad(w, shape, 4) && RowsAligned(p.out, shape.k, shape.k);
  const auto kernel = aligned ? EmbedKernel<kFormat, true> : EmbedKernel<kFormat, false>;
  kernel<<<Blocks(p.m * CeilDiv(shape.k, 4)), kThreads, 0, stream>>>(p.ids, p.m, w, shape, p.first,
                                                                     p.scale, p.out);
  return cudaGetLastError();
}

template <bool kAligned>
__global__ void StoreF32Kernel(const float* x, int64_t ldx, int64_t m, int64_t n,
                               const int32_t* slots, float* cache) {
  ForRuns(m, n, [&](int64_t t, int64_t column) {
    const int64_t slot = slots[t];
    if (slot < 0) return;
    StoreRow4<kAligned>(cache + slot * n, column, n, LoadRow4<kAligned>(x + t * ldx, column, n));
  });
}

template <bool kBf16, bool kAligned>
__global__ void StoreHalfKernel(const float* x, int64_t ldx, int64_t m, int64_t n,
                                const int32_t* slots, uint16_t* cache) {
  ForRuns(m, n, [&](int64_t t, int64_t column) {
    const int64_t slot = slots[t];
    if (slot < 0) return;
    const float4 v = LoadRow4<kAligned>(x + t * ldx, column, n);
    const uint2 bits = kBf16 ? ToBf16x4(v) : ToF16x4(v);
    uint16_t* out = cache + slot * n + column;
    if constexpr (kAligned) {
      *reinterpret_cast<uint2*>(out) = bits;
    } else {
      const uint16_t parts[4] = {static_cast<uint16_t>(bits.x), static_cast<uint16_t>(bits.x >> 16),
                                 static_cast<uint16_t>(bits.y),
                                 static_cast<uint16_t>(bits.y >> 16)};
      for (int i = 0; i < 4 && column + i < n; ++i) out[i] = parts[i];
    }
  });
}

// Codes of e4m3. A group of four columns has one scale, because heads have multiples of four.
template <bool kAligned>
__global__ void StoreCodesKernel(const float* x, int64_t ldx, int64_t m, int64_t n,
                                 const int32_t* slots, const float* scales, int64_t head_width,
                                 uint8_t* cache) {
  ForRuns(m, n, [&](int64_t t, int64_t column) {
    const int64_t slot = slots[t];
    if (slot < 0) return;
    const float scale = scales != nullptr ? scales[column / head_width] : 1.0f;
    const uint32_t codes = CodesOf(LoadRow4<kAligned>(x + t * ldx, column, n), scale);
    uint8_t* const out = cache + slot * n + column;
    if constexpr (kAligned) {
      *reinterpret_cast<uint32_t*>(out) = codes;
    } else {
      for (int i = 0; i < 4 && column + i < n; ++i) out[i] = static_cast<uint8_t>(codes >> 8 * i);
    }
  });
}

cudaError_t StoreCodes(const kernels::StoreKvParams& p, bool aligned, cudaStream_t stream) {
  const int64_t width = p.scales != nullptr ? p.n / p.heads : p.n;
  if (p.scales != nullptr && (p.n % p.heads != 0 || width % 4 != 0)) return cudaErrorInvalidValue;
  const auto kernel = aligned ? StoreCodesKernel<true> : StoreCodesKernel<false>;
  kernel<<<Blocks(p.m * CeilDiv(p.n, 4)), kThreads, 0, stream>>>(
      p.x, p.ldx, p.m, p.n, p.slots, p.scales, width, static_cast<uint8_t*>(p.cache));
  return cudaGetLastError();
}

template <bool kAligned>
__global__ void CopyRowsKernel(kernels::CopyRowsParams p) {
  ForRuns(p.m, p.n, [&](int64_t t, int64_t column) {
    const int64_t row = p.rows != nullptr ? p.rows[t] : t;
    StoreRow4<kAligned>(p.y + t * p.ldy, column, p.n,
                        LoadRow4<kAligned>(p.x + row * p.ldx, column, p.n));
  });
}

struct MoveArgs {
  static constexpr int kMost = 96;  // the arguments of a kernel have at most 4 KiB
  kernels::RowArray arrays[kMost];
  kernels::RowMove moves[kMost];
  int num_moves = 0;
};

// Moves the thread's pieces of the rows of an array.
template <typename Piece>
__device__ void MovePieces(const MoveArgs& p, const kernels::RowArray& array) {
  constexpr int kInFlight = 8;  // loads in flight
  auto* const rows = static_cast<Piece*>(array.data);
  const int64_t pieces = array.row_bytes / static_cast<int64_t>(sizeof(Piece));
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < pieces; i += step) {
    for (int begin = 0; begin < p.num_moves; begin += kInFlight) {
      Piece values[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j)
        if (begin + j < p.num_moves) values[j] = rows[p.moves[begin + j].from * pieces + i];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j)
        if (begin + j < p.num_moves) rows[p.moves[begin + j].to * pieces + i] = values[j];
    }
  }
}

__global__ void MoveRowsKernel(const __grid_constant__ MoveArgs p) {
  const kernels::RowArray& array = p.arrays[blockIdx.y];
  const uintptr_t place = reinterpret_cast<uintptr_t>(array.data) | array.row_bytes;
  if (place % sizeof(uint4) == 0) {
    MovePieces<uint4>(p, array);
  } else if (place % sizeof(uint32_t) == 0) {
    MovePieces<uint32_t>(p, array);
  } else {
    MovePieces<uint8_t>(p, array);
  }
}

template <bool kAligned>
__global__ void AddKernel(float* y, const float* x, int64_t count) {
  ForRuns(1, count, [&](int64_t, int64_t i) {
    float4 a = LoadRow4<kAligned>(y, i, count);
    const float4 b = LoadRow4<kAligned>(x, i, count);
    a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w;
    StoreRow4<kAligned>(y, i, count, a);
  });
}

template <bool kAligned>
__global__ void MultiplyBySigmoidKernel(float* x, const float* gate, int64_t count) {
  ForRuns(1, count, [&](int64_t, int64_t i) {
    float4 v = LoadRow4<kAligned>(x, i, count);
    const float4 g = LoadRow4<kAligned>(gate, i, count);
    v.x /= 1.0f + expf(-g.x), v.y /= 1.0f + expf(-g.y);
    v.z /= 1.0f + expf(-g.z), v.w /= 1.0f + expf(-g.w);
    StoreRow4<kAligned>(x, i, count, v);
  });
}

__global__ void MultiplyRowsBySigmoidKernel(float* x, const float* gate, int64_t count, int64_t n) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step)
    x[i] /= 1.0f + expf(-gate[i / n]);
}

// Comparisons keep NaN; fminf and fmaxf would not.
__global__ void ClampKernel(float* x, int64_t count, float limit) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const float v = x[i];
    x[i] = v > limit ? limit : v < -limit ? -limit : v;
  }
}

__global__ void GatherTokensKernel(int32_t* ids, const int32_t* rows, const int32_t* tokens,
                                   int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count && rows[i] >= 0) ids[i] = max(0, tokens[rows[i]]);
}

__global__ void TokensToFloatsKernel(float* y, int64_t ldy, const int32_t* tokens, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) y[i * ldy] = static_cast<float>(tokens[i]);
}

__global__ void ClearEntriesKernel(int32_t* values, const int32_t* index, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step)
    values[index[i]] = 0;
}

__global__ void RopeKernel(kernels::RopeParams p) {
  const int64_t half = p.rotary_dim / 2, pairs = p.heads * half;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < p.m * pairs; i += step) {
    const int64_t t = i / pairs, pair = i % pairs, head = pair / half, at = pair % half;
    const float* angles = p.cos_sin + p.positions[t] * p.rotary_dim;
    const float cosine = __ldg(angles + at), sine = __ldg(angles + half + at);
    float* x = p.x + t * p.ldx + head * p.head_dim + p.rotary_offset;
    float* a = p.interleaved ? x + 2 * at : x + at;
    float* b = p.interleaved ? a + 1 : a + half;
    Rotate(a, b, cosine, sine);
  }
}

}  // namespace

cudaError_t Embed(const kernels::EmbedParams& p, cudaStream_t stream) {
  if (p.m == 0 || p.w.k == 0) return cudaSuccess;
  switch (p.w.format) {
    case WeightFormat::kF32:
      return EmbedAs<WeightFormat::kF32>(p, stream);
    case WeightFormat::kBF16:
      return EmbedAs<WeightFormat::kBF16>(p, stream);
    case WeightFormat::kF16:
      return EmbedAs<WeightFormat::kF16>(p, stream);
    case WeightFormat::kFp8Block:
      return EmbedAs<WeightFormat::kFp8Block>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t StoreKv(const kernels::StoreKvParams& p, cudaStream_t stream) {
  if (p.m == 0 || p.n == 0) return cudaSuccess;
  const bool aligned = RowsAligned(p.x, p.ldx, p.n) && Aligned16(p.cache);
  const unsigned blocks = Blocks(p.m * CeilDiv(p.n, 4));
  if (p.dtype == DType::kF32) {
    const auto kernel = aligned ? StoreF32Kernel<true> : StoreF32Kernel<false>;
    kernel<<<blocks, kThreads, 0, stream>>>(p.x, p.ldx, p.m, p.n, p.slots,
                                            static_cast<float*>(p.cache));
    return cudaGetLastError();
  }
  if (p.dtype == DType::kF8E4M3) return StoreCodes(p, aligned, stream);
  if (p.dtype != DType::kBF16 && p.dtype != DType::kF16) return cudaErrorInvalidValue;
  const bool bf16 = p.dtype == DType::kBF16;
  const auto kernel =
      bf16 ? (aligned ? StoreHalfKernel<true, true> : StoreHalfKernel<true, false>)
           : (aligned ? StoreHalfKernel<false, true> : StoreHalfKernel<false, false>);
  kernel<<<blocks, kThreads, 0, stream>>>(p.x, p.ldx, p.m, p.n, p.slots,
                                          static_cast<uint16_t*>(p.cache));
  return cudaGetLastError();
}

cudaError_t CopyRows(const kernels::CopyRowsParams& p, cudaStream_t stream) {
  if (p.m == 0 || p.n == 0) return cudaSuccess;
  const bool aligned = RowsAligned(p.x, p.ldx, p.n) && RowsAligned(p.y, p.ldy, p.n);
  const auto kernel = aligned ? CopyRowsKernel<true> : CopyRowsKernel<false>;
  kernel<<<Blocks(p.m * CeilDiv(p.n, 4)), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t MoveRows(const kernels::MoveRowsParams& p, cudaStream_t stream) {
  for (size_t array = 0; array < p.arrays.size(); array += MoveArgs::kMost) {
    const auto arrays =
        p.arrays.subspan(array, std::min<size_t>(MoveArgs::kMost, p.arrays.size() - array));
    MoveArgs args;
    std::copy(arrays.begin(), arrays.end(), args.arrays);
    int64_t longest = 0;
    for (const kernels::RowArray& a : arrays) longest = std::max(longest, a.row_bytes);
    if (longest == 0) continue;
    const dim3 grid(Blocks(CeilDiv(longest, sizeof(uint4))), static_cast<unsigned>(arrays.size()));
    for (size_t move = 0; move < p.moves.size(); move += MoveArgs::kMost) {
      const auto moves =
          p.moves.subspan(move, std::min<size_t>(MoveArgs::kMost, p.moves.size() - move));
      std::copy(moves.begin(), moves.end(), args.moves);
      args.num_moves = static_cast<int>(moves.size());
      MoveRowsKernel<<<grid, kThreads, 0, stream>>>(args);
      if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

cudaError_t AddInPlace(float* y, const float* x, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const bool aligned = Aligned16(x) && Aligned16(y) && count % 4 == 0;
  const auto kernel = aligned ? AddKernel<true> : AddKernel<false>;
  kernel<<<Blocks(CeilDiv(count, 4)), kThreads, 0, stream>>>(y, x, count);
  return cudaGetLastError();
}

cudaError_t MultiplyBySigmoid(float* x, const float* gate, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const bool aligned = Aligned16(x) && Aligned16(gate) && count % 4 == 0;
  const auto kernel = aligned ? MultiplyBySigmoidKernel<true> : MultiplyBySigmoidKernel<false>;
  kernel<<<Blocks(CeilDiv(count, 4)), kThreads, 0, stream>>>(x, gate, count);
  return cudaGetLastError();
}

cudaError_t MultiplyRowsBySigmoid(float* x, const float* gate, int64_t rows, int64_t n,
                                  cudaStream_t stream) {
  const int64_t count = rows * n;
  if (count == 0) return cudaSuccess;
  MultiplyRowsBySigmoidKernel<<<Blocks(count), kThreads, 0, stream>>>(x, gate, count, n);
  return cudaGetLastError();
}

cudaError_t Clamp(float* x, int64_t count, float limit, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  ClampKernel<<<Blocks(count), kThreads, 0, stream>>>(x, count, limit);
  return cudaGetLastError();
}

cudaError_t GatherTokens(int32_t* ids, const int32_t* rows, const int32_t* tokens, int64_t count,
                         cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  GatherTokensKernel<<<blocks, kThreads, 0, stream>>>(ids, rows, tokens, count);
  return cudaGetLastError();
}

cudaError_t TokensToFloats(float* y, int64_t ldy, const int32_t* tokens, int64_t count,
                           cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  TokensToFloatsKernel<<<blocks, kThreads, 0, stream>>>(y, ldy, tokens, count);
  return cudaGetLastError();
}

cudaError_t ClearEntries(int32_t* values, const int32_t* index, int64_t count,
                         cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  ClearEntriesKernel<<<Blocks(count), kThreads, 0, stream>>>(values, index, count);
  return cudaGetLastError();
}

cudaError_t Rope(const kernels::RopeParams& p, cudaStream_t stream) {
  const int64_t pairs = p.m * p.heads * (p.rotary_dim / 2);
  if (pairs == 0) return cudaSuccess;
  RopeKernel<<<Blocks(pairs), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace switchyard::cuda::ops
