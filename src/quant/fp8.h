// Rows of e4m3 codes: how float32 values become codes and scales, and come back.
//
// Every function gives the same bits on every CPU. Values round to the nearest code, ties to even,
// and saturate at ±448; NaN becomes the NaN code.
#pragma once

#include <cstdint>
#include <span>

namespace switchyard {

constexpr int64_t kFp8GroupSize = 128;  // elements of a row that share a scale

// codes[i] = e4m3(x[i] · (1 / scale)) and x[i] = codes[i] · scale.
void EncodeFp8(const float* x, int64_t n, float scale, uint8_t* codes);
void DecodeFp8(const uint8_t* codes, int64_t n, float scale, float* x);

// The scale with which x [n] is encoded: amax / 448, but at least 2^-64 (which a row of zeros
// gets), in a float32 of 20 significant bits. Those make every code · scale exact, so that a
// decoded row has the same scale and codes again. A NaN or an infinity makes the scale not finite.
float Fp8Scale(const float* x, int64_t n);

// One scale for each group of kFp8GroupSize elements of x [n]; the last group may be short.
// `scales` has CeilDiv(n, kFp8GroupSize) elements. Quantizing a dequantized row gives the same
// codes and scales, so a row may be rounded at every stage that it passes.
void QuantizeFp8Groups(const float* x, int64_t n, uint8_t* codes, float* scales);
void DequantizeFp8Groups(const uint8_t* codes, const float* scales, int64_t n, float* x);

// Whether a code is one of the two NaNs (0x7f, 0xff), which kernels do not tell from ±480: who
// loads e4m3 weights or scales refuses them.
bool HasNanCodes(std::span<const uint8_t> codes);

}  // namespace switchyard
