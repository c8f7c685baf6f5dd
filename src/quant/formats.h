// Weight and activation formats, with the constants and scalar conversions that all packing and
// unpacking code shares.
#pragma once

#include <bit>
#include <cstdint>

#include "core/rounding.h"

namespace switchyard {

// Storage of W [N, K], row-major along K. Except for kInt4Group and panels, each layout is that of
// published checkpoints of the format, so weights are used in place from the mapped file.
enum class WeightFormat : uint8_t {
  kF32,
  kBF16,
  kF16,
  // float8_e4m3 [N, K] with float32 scales [ceil(N/128), ceil(K/128)] ("weight_scale_inv"): w = q ·
  // scale.
  kFp8Block,
  // float8_e4m3 [N, K] with one float32 scale per row [N]: w = q · scale. A per-tensor scale of a
  // checkpoint is broadcast to its rows at load time.
  kFp8Channel,
  // int8 [N, K] with one float32 scale per row [N]: w = q · scale.
  kInt8Channel,
  // 4-bit codes 0..15, two per byte, low nibble first: uint8 [N, K/2]. Scales are float32 [N,
  // ceil(K/g)], zero points uint8 [N, ceil(K/g)] from 0 to 16 (8 if absent): w = (code - zero) ·
  // scale. g is the view's group_size; K is even. GPTQ, AWQ and compressed-tensors pack the same
  // numbers in other orders, which are converted to this one at load time.
  kInt4Group,
  // 4-bit e2m1, two per byte, low nibble first: uint8 [N, K/32, 16]. One e8m0 exponent (bias 127)
  // per 32 columns: uint8 [N, K/32] (OCP microscaling; `_blocks` and `_scales` of gpt-oss).
  kMxfp4,
  // 4-bit e2m1, two per byte, low nibble first: uint8 [N, K/2]. One e4m3 scale per 16 columns, [N,
  // K/16], and one float32 scale per tensor, the view's global_scale: w = q · (scale ·
  // global_scale).
  kNvfp4,
  // Panels of sixteen interleaved rows (quant/panels.h), which hold codes, scales and zero points.
  // Loaders on CPUs convert weights to panels: kInt4Group with bfloat16 scales to kInt4Panels
  // (without zero points) or kInt4ZeroPanels, with float16 scales to kInt4HalfPanels or
  // kInt4HalfZeroPanels, kMxfp4 to kMxfp4Panels, kNvfp4 to kNvfp4Panels, and ggml's types
  // (quant/ggml_blocks.h) to the others.
  kInt4Panels,
  kInt4ZeroPanels,
  kInt4HalfPanels,
  kInt4HalfZeroPanels,
  kNvfp4Panels,
  kMxfp4Panels,
  kQ4_0Panels,
  kQ8_0Panels,
  kQ4KPanels,
  kQ5KPanels,
  kQ6KPanels,
  kIQ4XSPanels,
};
constexpr bool HasPanels(WeightFormat format) { return format >= WeightFormat::kInt4Panels; }
// Panels of kInt4Group, in groups of the view's group_size.
constexpr bool IsInt4Panels(WeightFormat format) {
  return format >= WeightFormat::kInt4Panels && format <= WeightFormat::kInt4HalfZeroPanels;
}

// Format to which input rows are rounded before a product. A checkpoint that was quantized for
// rounded rows defines the format. The rounding is that of GPU kernels for the same format.
enum class ActivationFormat : uint8_t {
  kNone,       // float32, not rounded
  kFp8Group,   // e4m3, one scale per 128 columns of each row: amax / 448
  kFp8Token,   // e4m3, one scale per row: amax / 448
  kFp8Tensor,  // e4m3, static scale: the checkpoint's input_scale
  kInt8Token,  // int8, symmetric, one scale per row: amax / 127
  kBFloat16,   // bfloat16, ties to even: for products with bfloat16 and FP8 weights
  // int8, symmetric, one scale per 128 columns of each row: amax / 127. Used on CPUs only, with
  // weight formats for which TakesInt8Groups is true.
  kInt8Group,
};

constexpr int64_t kFp8BlockSize = 128;   // rows and columns that share a scale
constexpr int64_t kInt8GroupSize = 128;  // columns of a row of kInt8Group that share a scale
constexpr int64_t kMxfp4BlockSize = 32;  // columns that share an exponent
constexpr int64_t kNvfp4BlockSize = 16;  // columns that share a scale
constexpr int kInt4Zero = 8;             // zero point of kInt4Group if none is stored

// The sixteen values of e2m1 (sign, two exponent bits, one mantissa bit).
constexpr float kE2M1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                             -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// The values of ggml's non-linear 4-bit codes (IQ4_NL and IQ4_XS).
constexpr int8_t kNonLinear4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};

// e8m0: 2^(code - 127); 255 is NaN. Code 0 is the subnormal 2^-127.
constexpr float FromE8M0(uint8_t code) {
  if (code == 0) return std::bit_cast<float>(0x00400000u);
  if (code == 255) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(uint32_t{code} << 23);
}

}  // namespace switchyard
