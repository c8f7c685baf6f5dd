// FP8 (e4m3) quantization of rows.
//
// All functions are bit-identical on every CPU. Values round to the nearest code, ties to even, and
// saturate at ±448; NaN becomes the NaN code.
#pragma once

#include <cstdint>
#include <span>

namespace switchyard {

constexpr int64_t kFp8GroupSize = 128;  // elements of a row that share a scale

// Encode: codes[i] = e4m3(x[i] · (1 / scale)). Decode: x[i] = codes[i] · scale.
void EncodeFp8(const float* x, int64_t n, float scale, uint8_t* codes);
void DecodeFp8(const uint8_t* codes, int64_t n, float scale, float* x);

// Quantization scale of x [n]: amax / 448, at least 2^-64 (also for a row of zeros), rounded to a
// float32 of 20 significant bits. With 20 bits every product code · scale is exact, so quantizing a
// dequantized row gives the same scale and codes. A NaN or infinity makes the scale non-finite.
float Fp8Scale(const float* x, int64_t n);

// Group-wise quantization: one scale per kFp8GroupSize elements of x [n]; the last group may be
// short. `scales` has CeilDiv(n, kFp8GroupSize) elements. Quantizing a dequantized row gives the
// same codes and scales, so a row may be rounded at every stage of the pipeline.
void QuantizeFp8Groups(const float* x, int64_t n, uint8_t* codes, float* scales);
void DequantizeFp8Groups(const uint8_t* codes, const float* scales, int64_t n, float* x);

// Whether any code is one of the two NaNs (0x7f, 0xff). Kernels decode NaN codes as ±480, so
// loaders reject e4m3 weights and scales with NaN codes.
bool HasNanCodes(std::span<const uint8_t> codes);

}  // namespace switchyard
