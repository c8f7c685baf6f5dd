// The weight formats, with the constants and scalar rules shared by everything that packs or
// unpacks them.
#pragma once

#include <bit>
#include <cstdint>

namespace switchyard {

// How the elements of W [N, K] are stored, row-major along K. Each format's layout is the one
// published by the checkpoints that use it, so that weights are used in place, straight from the
// mapped file.
enum class WeightFormat : uint8_t {
  kF32,
  kBF16,
  kF16,
  // float8_e4m3 [N, K] with float32 scales [ceil(N/128), ceil(K/128)] ("weight_scale_inv"): w = q ·
  // scale.
  kFp8Block,
  // float8_e4m3 [N, K] with one float32 scale for each row [N]: w = q · scale. A checkpoint's scale
  // per tensor is spread over its rows when it is loaded.
  kFp8Channel,
  // int8 [N, K] with one float32 scale for each row [N]: w = q · scale.
  kInt8Channel,
  // 4-bit codes 0..15, two to a byte, low nibble first, uint8 [N, K/2], float32 scales
  // [N, ceil(K/g)] and uint8 zero points [N, ceil(K/g)] (none: 8): w = (code - zero) · scale. g is
  // the view's group_size, K is even.
  // GPTQ, AWQ and compressed-tensors pack the same numbers in other orders, and are brought into
  // this one when they are loaded.
  kInt4Group,
  // 4-bit e2m1, two to a byte, low nibble first, uint8 [N, K/32, 16], with one e8m0 exponent (bias
  // 127) per 32 along K, uint8 [N, K/32] (OCP microscaling; gpt-oss's `_blocks`, `_scales`).
  kMxfp4,
  // 4-bit e2m1, two to a byte, low nibble first, uint8 [N, K/2], with one e4m3 scale per 16 along
  // K, [N, K/16], and one float32 for the tensor, the view's global_scale: w = q · (scale
  // · global_scale).
  kNvfp4,
};

// What a runner makes of its input rows before it multiplies them. A checkpoint that was quantized
// for such inputs says so; the numbers are those of the arithmetic that GPUs have for the format.
enum class ActivationFormat : uint8_t {
  kNone,       // float32 as they are
  kFp8Group,   // e4m3, one scale for 128 along K of each row: amax / 448
  kFp8Token,   // e4m3, one scale for each row: amax / 448
  kFp8Tensor,  // e4m3, the checkpoint's input_scale for all
  kInt8Token,  // int8, symmetric, one scale for each row: amax / 127
  kBFloat16,   // nearest, ties to even: the rows that GPUs and AMX have for weights in bfloat16
};

constexpr int64_t kFp8BlockSize = 128;   // rows and columns that share a scale
constexpr int64_t kMxfp4BlockSize = 32;  // columns that share an exponent
constexpr int64_t kNvfp4BlockSize = 16;  // columns that share a scale
constexpr int kInt4Zero = 8;             // kInt4Group's zero point where none is stored

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The sixteen values of e2m1 (sign, two exponent bits, one mantissa bit).
constexpr float kE2M1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                             -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// e8m0: 2^(code - 127); 255 is NaN. Code 0 is the subnormal 2^-127.
constexpr float FromE8M0(uint8_t code) {
  if (code == 0) return std::bit_cast<float>(0x00400000u);
  if (code == 255) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(uint32_t{code} << 23);
}

}  // namespace switchyard
