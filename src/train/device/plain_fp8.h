// Rounding of operands to e4m3 as FP8 products of training do it. The reference of GPU kernels.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "quant/fp8.h"
#include "train/device/ops.h"
#include "train/device/plain_ops.h"

namespace switchyard::train::plain {

// The scale of elements whose largest magnitude is `largest`: the smallest power of two, at least
// 2^-64, with largest / scale <= 448. Not finite if `largest` is not. Rounding decoded elements
// again, with their own scale, does not change them.
inline float Fp8ScaleOf(float largest) {
  constexpr uint32_t kSmallest = 127 - 64;  // biased exponents
  const auto bits = std::bit_cast<uint32_t>(largest) & 0x7fffffffu;
  if (bits >= 0x7f800000u) return largest;
  // 448 = 1.75 · 2^8: the addition carries into the exponent if the significand exceeds 1.75.
  const uint32_t exponent = (bits + 0x1fffffu) >> 23;
  return std::bit_cast<float>((std::max(exponent, kSmallest + 8) - 8) << 23);
}

// NaN counts as the largest magnitude.
inline float LargestMagnitude(std::span<const float> values) {
  uint32_t largest = 0;
  for (const float x : values)
    largest = std::max(largest, std::bit_cast<uint32_t>(x) & 0x7fffffffu);
  return std::bit_cast<float>(largest);
}

// Replaces elements that share a scale by their decoded codes.
inline void RoundToFp8(std::span<float> values) {
  const float scale = Fp8ScaleOf(LargestMagnitude(values));
  std::vector<uint8_t> codes(values.size());
  EncodeFp8(values.data(), std::ssize(values), scale, codes.data());
  DecodeFp8(codes.data(), std::ssize(values), scale, values.data());
}

// Codes of x [count], with a scale for each block of 128 elements.
template <typename C>
void QuantizeRows(const C* x, int64_t count, uint8_t* codes, float* scales) {
  std::vector<float> block(kFp8Block);
  for (int64_t at = 0; at < count; at += kFp8Block) {
    std::transform(x + at, x + at + kFp8Block, block.begin(), [](C value) { return Load(value); });
    const float scale = scales[at / kFp8Block] = Fp8ScaleOf(LargestMagnitude(block));
    EncodeFp8(block.data(), kFp8Block, scale, codes + at);
  }
}

// x [rows, width], rounded in blocks of 128 elements of a row.
template <typename C>
std::vector<float> RoundRowsToFp8(const C* x, int64_t rows, int64_t width) {
  std::vector<float> rounded(static_cast<size_t>(rows * width));
  std::vector<uint8_t> codes(rounded.size());
  std::vector<float> scales(rounded.size() / kFp8Block);
  QuantizeRows(x, rows * width, codes.data(), scales.data());
  DequantizeFp8Groups(codes.data(), scales.data(), rows * width, rounded.data());
  return rounded;
}

// x [begins.back(), width], rounded in blocks of 128 rows of a group in a column. Group g has the
// rows [begins[g], begins[g + 1]), and its last block may be short.
template <typename C>
std::vector<float> RoundColumnsToFp8(const C* x, std::span<const int32_t> begins, int64_t width) {
  std::vector<float> rounded(static_cast<size_t>(begins.back() * width));
  std::vector<float> block;
  for (size_t g = 0; g + 1 < begins.size(); ++g) {
    for (int64_t first = begins[g]; first < begins[g + 1]; first += kFp8Block) {
      const int64_t end = std::min<int64_t>(begins[g + 1], first + kFp8Block);
      for (int64_t column = 0; column < width; ++column) {
        block.clear();
        for (int64_t row = first; row < end; ++row) block.push_back(Load(x[row * width + column]));
        RoundToFp8(block);
        for (int64_t row = first; row < end; ++row)
          rounded[static_cast<size_t>(row * width + column)] =
              block[static_cast<size_t>(row - first)];
      }
    }
  }
  return rounded;
}

// Calls body(first row, first column, index of the scale) for the blocks of the weights as one
// matrix [groups · n, k].
template <typename Body>
void ForWeightBlocks(const LinearShape& s, const Body& body) {
  for (int64_t row = 0; row < s.groups * s.n; row += kFp8Block)
    for (int64_t column = 0; column < s.k; column += kFp8Block)
      body(row, column, (row * s.k / kFp8Block + column) / kFp8Block);
}

// TrainOps::QuantizeWeight.
template <typename C>
void QuantizeWeight(const LinearShape& s, const C* w) {
  const Fp8Weight& out = *s.fp8;
  std::vector<float> block(kFp8Block * kFp8Block);
  std::vector<uint8_t> codes(block.size());
  ForWeightBlocks(s, [&](int64_t row, int64_t column, int64_t at) {
    for (int64_t i = 0; i < kFp8Block; ++i)
      for (int64_t j = 0; j < kFp8Block; ++j)
        block[static_cast<size_t>(i * kFp8Block + j)] = Load(w[(row + i) * s.k + column + j]);
    const float scale = Fp8ScaleOf(LargestMagnitude(block));
    EncodeFp8(block.data(), std::ssize(block), scale, codes.data());
    const int64_t group = row / s.n, in_group = row % s.n;
    uint8_t* const transposed = out.transposed + group * s.n * s.k;
    for (int64_t i = 0; i < kFp8Block; ++i) {
      for (int64_t j = 0; j < kFp8Block; ++j) {
        const uint8_t code = codes[static_cast<size_t>(i * kFp8Block + j)];
        out.codes[(row + i) * s.k + column + j] = code;
        transposed[(column + j) * s.n + in_group + i] = code;
      }
    }
    out.scales[at] = scale;
    const int64_t across = s.n / kFp8Block, along = s.k / kFp8Block;
    out.transposed_scales[group * across * along + column / kFp8Block * across +
                          in_group / kFp8Block] = scale;
  });
}

// The decoded weights [groups, n, k].
inline std::vector<float> DecodeWeight(const LinearShape& s) {
  std::vector<float> decoded(static_cast<size_t>(s.groups * s.n * s.k));
  ForWeightBlocks(s, [&](int64_t row, int64_t column, int64_t at) {
    for (int64_t i = row; i < row + kFp8Block; ++i)
      DecodeFp8(s.fp8->codes + i * s.k + column, kFp8Block, s.fp8->scales[at],
                decoded.data() + i * s.k + column);
  });
  return decoded;
}

}  // namespace switchyard::train::plain
