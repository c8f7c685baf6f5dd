// Unpacks a thread's part of a 4-bit weight tile to the registers of wgmma's first operand. The
// values are those of weights expanded to bfloat16, bit for bit.
//
// Expansion rounds code · scale to float32, then to bfloat16. kMxfp4's product is exact, so one
// rounding to bfloat16 is equivalent; the other formats round twice as expansion does. e2m1 codes
// are taken as 2^-126 and their scales as 2^126 times their value, which changes no product.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/gemm/gemm_tiles.cuh"
#include "kernels/cuda/quantized/w4a16_layout.h"

namespace switchyard::cuda {

namespace ptx {

// Multiplies both halves and rounds to nearest even; subnormals are not flushed.
__device__ __forceinline__ uint32_t MulBf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t SubBf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

}  // namespace ptx

__device__ __forceinline__ float LowBf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float HighBf16(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
// Multiplies both halves by `scale` in float32 and rounds the products to bfloat16.
__device__ __forceinline__ uint32_t ScaleBf16x2(uint32_t pair, float scale) {
  return Pack(__fmul_rn(LowBf16(pair), scale), __fmul_rn(HighBf16(pair), scale));
}

// The codes of a run of columns; `run` is a compile-time constant after unrolling.
__device__ __forceinline__ uint32_t WordOf(const uint4& codes, int run) {
  return run == 0 ? codes.x : run == 1 ? codes.y : run == 2 ? codes.z : codes.w;
}

// One thread's codes and scales of a record in shared or global memory. Call Load once, then Unpack
// for each run of 16 columns, which fills the four registers of a wgmma.
template <W4A16Kind kKind, int kScales>
class W4A16Tile;

template <int kScales>
class W4A16Tile<W4A16Kind::kMxfp4, kScales> {
 public:
  static_assert(kScales == 2);
  __device__ __forceinline__ void Load(const uint8_t* record, int thread, float /*global*/) {
    codes_ = reinterpret_cast<const uint4*>(record)[thread];
    const auto* scales = reinterpret_cast<const uint32_t*>(record + kW4A16CodeBytes);
    const uint32_t bytes = scales[W4A16RowPair(thread)];  // [2 scales][2 rows]
#pragma unroll
    for (int i = 0; i < 4; ++i) scales_[i] = W4A16ExponentPair(bytes >> (8 * i) & 0xff);
  }
  __device__ __forceinline__ void Unpack(int run, uint32_t (&a)[4]) const {
    const uint32_t word = WordOf(codes_, run);
#pragma unroll
    for (int slot = 0; slot < 4; ++slot)
      a[slot] = ptx::MulBf16x2(W4A16E2M1Pair(word, slot), scales_[run / 2 * 2 + slot % 2]);
  }

 private:
  uint4 codes_;
  uint32_t scales_[4];
};

template <int kScales>
class W4A16Tile<W4A16Kind::kNvfp4, kScales> {
 public:
  static_assert(kScales == 4);
  __device__ __forceinline__ void Load(const uint8_t* record, int thread, float global) {
    codes_ = reinterpret_cast<const uint4*>(record)[thread];
    const auto* scales = reinterpret_cast<const uint2*>(record + kW4A16CodeBytes);
    scales_ = scales[W4A16RowPair(thread)];  // bytes [4 scales][2 rows]
    global_ = global;
  }
  __device__ __forceinline__ void Unpack(int run, uint32_t (&a)[4]) const {
    const uint32_t word = WordOf(codes_, run), four = run < 2 ? scales_.x : scales_.y;
    const auto both = static_cast<__nv_fp8x2_storage_t>(four >> (run % 2 * 16));
    const float2 rows = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(both, __NV_E4M3)));
    const float scales[2] = {__fmul_rn(rows.x, global_), __fmul_rn(rows.y, global_)};
#pragma unroll
    for (int slot = 0; slot < 4; ++slot)
      a[slot] = ScaleBf16x2(W4A16E2M1Pair(word, slot), scales[slot % 2]);
  }

 private:
  uint4 codes_;
  uint2 scales_;
  float global_;
};

template <int kScales>
class W4A16Tile<W4A16Kind::kInt4, kScales> {
 public:
  __device__ __forceinline__ void Load(const uint8_t* record, int thread, float /*global*/) {
    codes_ = reinterpret_cast<const uint4*>(record)[thread];
    const auto* scales =
        reinterpret_cast<const float2*>(record + kW4A16CodeBytes) + W4A16RowPair(thread) * kScales;
    const auto* zeros = reinterpret_cast<const uint16_t*>(record + kW4A16CodeBytes +
                                                          kW4A16Tile * kScales * sizeof(float)) +
                        W4A16RowPair(thread) * kScales;
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      const uint32_t both = zeros[i];
      scales_[i] = scales[i];
      zeros_[i][0] = W4A16ZeroPair(both & 0xff);
      zeros_[i][1] = W4A16ZeroPair(both >> 8);
    }
  }
  __device__ __forceinline__ void Unpack(int run, uint32_t (&a)[4]) const {
    const uint32_t word = WordOf(codes_, run);
    const int i = run * kScales / 4;
#pragma unroll
    for (int slot = 0; slot < 4; ++slot) {
      const uint32_t whole = ptx::SubBf16x2(W4A16Int4Pair(word, slot), zeros_[i][slot % 2]);
      a[slot] = ScaleBf16x2(whole, slot % 2 == 0 ? scales_[i].x : scales_[i].y);
    }
  }

 private:
  uint4 codes_;
  float2 scales_[kScales];
  uint32_t zeros_[kScales][2];
};

}  // namespace switchyard::cuda
