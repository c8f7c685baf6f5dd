// Loads, stores and conversions of weights and rows, four elements at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/device/ops_weight.h"

namespace switchyard::cuda::ops {

constexpr int kWarp = 32;

// Whether `p` allows 16-byte loads and stores.
__host__ __device__ inline bool Aligned16(const void* p) {
  return (reinterpret_cast<uintptr_t>(p) & 15) == 0;
}

__device__ __forceinline__ float4 Bf16x4(uint2 bits) {
  return {__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
          __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u)};
}
__device__ __forceinline__ float4 F16x4(uint2 bits) {
  const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
  const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
  return {low.x, low.y, high.x, high.y};
}
__device__ __forceinline__ float4 E4m3x4(uint32_t codes) {
  const __half2 low(__nv_cvt_fp8x2_to_halfraw2(codes & 0xffffu, __NV_E4M3));
  const __half2 high(__nv_cvt_fp8x2_to_halfraw2(codes >> 16, __NV_E4M3));
  const float2 a = __half22float2(low), b = __half22float2(high);
  return {a.x, a.y, b.x, b.y};
}

__device__ __forceinline__ uint2 ToBf16x4(float4 v) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(v.z, v.w);
  return {*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high)};
}
__device__ __forceinline__ uint2 ToF16x4(float4 v) {
  const __half2 low = __floats2half2_rn(v.x, v.y);
  const __half2 high = __floats2half2_rn(v.z, v.w);
  return {*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high)};
}

// Loads of a format's elements as float32. `Load4` requires alignment to four elements.
template <WeightFormat>
struct Elements;
template <>
struct Elements<WeightFormat::kF32> {
  using Type = float;
  static constexpr bool kScaled = false;
  static __device__ __forceinline__ float4 Load4(const Type* p) {
    return __ldg(reinterpret_cast<const float4*>(p));
  }
  static __device__ __forceinline__ float Load(const Type* p) { return __ldg(p); }
};
template <>
struct Elements<WeightFormat::kBF16> {
  using Type = uint16_t;
  static constexpr bool kScaled = false;
  static __device__ __forceinline__ float4 Load4(const Type* p) {
    return Bf16x4(__ldg(reinterpret_cast<const uint2*>(p)));
  }
  static __device__ __forceinline__ float Load(const Type* p) {
    return __uint_as_float(static_cast<uint32_t>(__ldg(p)) << 16);
  }
};
template <>
struct Elements<WeightFormat::kF16> {
  using Type = uint16_t;
  static constexpr bool kScaled = false;
  static __device__ __forceinline__ float4 Load4(const Type* p) {
    return F16x4(__ldg(reinterpret_cast<const uint2*>(p)));
  }
  static __device__ __forceinline__ float Load(const Type* p) {
    return __half2float(__ushort_as_half(__ldg(p)));
  }
};
template <>
struct Elements<WeightFormat::kFp8Block> {
  using Type = uint8_t;
  static constexpr bool kScaled = true;
  static __device__ __forceinline__ float4 Load4(const Type* p) {
    return E4m3x4(__ldg(reinterpret_cast<const uint32_t*>(p)));
  }
  static __device__ __forceinline__ float Load(const Type* p) { return E4m3x4(__ldg(p)).x; }
};

template <WeightFormat kFormat>
__device__ __forceinline__ float BlockScale(const WeightArg& w, const WeightShape& shape,
                                            int64_t row, int64_t column) {
  if constexpr (!Elements<kFormat>::kScaled) return 1.0f;
  const int64_t stored_row = w.row0 + row * shape.row_step, stored_column = w.col0 + column;
  return __ldg(w.scales + stored_row / kFp8BlockSize * shape.scale_stride +
               stored_column / kFp8BlockSize);
}

template <WeightFormat kFormat>
__device__ __forceinline__ float LoadWeight(const WeightArg& w, const WeightShape& shape,
                                            int64_t row, int64_t column) {
  using E = Elements<kFormat>;
  const auto* p = static_cast<const typename E::Type*>(w.base) + row * shape.row_stride + column;
  const float value = E::Load(p);
  return E::kScaled ? value * BlockScale<kFormat>(w, shape, row, column) : value;
}

// Columns [column, column + 4) of a row; zeros outside of the view. kAligned: the four columns are
// one aligned load with one scale, entirely inside or outside of the view.
template <WeightFormat kFormat, bool kAligned>
__device__ __forceinline__ float4 LoadWeight4(const WeightArg& w, const WeightShape& shape,
                                              int64_t row, int64_t column) {
  float4 v = {0, 0, 0, 0};
  if (row >= shape.n) return v;
  if constexpr (kAligned) {
    if (column >= shape.k) return v;
    using E = Elements<kFormat>;
    v = E::Load4(static_cast<const typename E::Type*>(w.base) + row * shape.row_stride + column);
    if constexpr (E::kScaled) {
      const float scale = BlockScale<kFormat>(w, shape, row, column);
      v.x *= scale, v.y *= scale, v.z *= scale, v.w *= scale;
    }
  } else {
    if (column < shape.k) v.x = LoadWeight<kFormat>(w, shape, row, column);
    if (column + 1 < shape.k) v.y = LoadWeight<kFormat>(w, shape, row, column + 1);
    if (column + 2 < shape.k) v.z = LoadWeight<kFormat>(w, shape, row, column + 2);
    if (column + 3 < shape.k) v.w = LoadWeight<kFormat>(w, shape, row, column + 3);
  }
  return v;
}

// Returns columns [column, column + 8) rounded to bfloat16. kAligned has the meaning above, for
// eight columns.
template <WeightFormat kFormat, bool kAligned>
__device__ __forceinline__ uint4 LoadWeight8AsBf16(const WeightArg& w, const WeightShape& shape,
                                                   int64_t row, int64_t column) {
  if constexpr (kAligned && kFormat == WeightFormat::kBF16) {
    if (row >= shape.n || column >= shape.k) return {0, 0, 0, 0};
    const auto* p = static_cast<const uint16_t*>(w.base) + row * shape.row_stride + column;
    return __ldg(reinterpret_cast<const uint4*>(p));
  } else {
    const uint2 low = ToBf16x4(LoadWeight4<kFormat, kAligned>(w, shape, row, column));
    const uint2 high = ToBf16x4(LoadWeight4<kFormat, kAligned>(w, shape, row, column + 4));
    return {low.x, low.y, high.x, high.y};
  }
}

// Loads four columns of a float32 row.
template <bool kAligned>
__device__ __forceinline__ float4 LoadRow4(const float* row, int64_t column, int64_t columns) {
  float4 v = {0, 0, 0, 0};
  if constexpr (kAligned) {
    if (column < columns) v = *reinterpret_cast<const float4*>(row + column);
  } else {
    if (column < columns) v.x = row[column];
    if (column + 1 < columns) v.y = row[column + 1];
    if (column + 2 < columns) v.z = row[column + 2];
    if (column + 3 < columns) v.w = row[column + 3];
  }
  return v;
}

template <bool kAligned>
__device__ __forceinline__ void StoreRow4(float* row, int64_t column, int64_t columns, float4 v) {
  if constexpr (kAligned) {
    if (column < columns) *reinterpret_cast<float4*>(row + column) = v;
  } else {
    if (column < columns) row[column] = v.x;
    if (column + 1 < columns) row[column + 1] = v.y;
    if (column + 2 < columns) row[column + 2] = v.z;
    if (column + 3 < columns) row[column + 3] = v.w;
  }
}

__device__ __forceinline__ float Silu(float x) { return x / (1.0f + expf(-x)); }

inline bool RowsAligned(const void* p, int64_t stride, int64_t columns) {
  return Aligned16(p) && stride % 4 == 0 && columns % 4 == 0;
}

}  // namespace switchyard::cuda::ops
