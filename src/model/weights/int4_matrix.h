// A matrix of 4-bit codes in a checkpoint's packing: w = (code - zero) · scale.
#pragma once

#include <cstdint>

#include "model/config_quantization.h"
#include "model/weights/safetensors.h"
#include "model/weights/shard.h"

namespace switchyard {

// Columns in one word, for methods that pack along k; matrices are sharded at multiples
// of it.
constexpr int64_t kInt4Word = 8;

// Tensors of the matrix [n, k], with checked dtypes and shapes, with G groups of columns. Nibbles
// count from the lowest.
//   kPackedInt4    codes int32 [n, k/8], column j in nibble j % 8; zeros int32 [n/8, G], row i in
//                  nibble i % 8; scales [n, G]
//   kGptq          codes int32 [k/8, n], column j in nibble j % 8; zeros int32 [G, n/8], row i in
//                  nibble i % 8, less 1 in the method's first layout; scales [G, n]
//   kAwq           codes int32 [k, n/8], zeros int32 [G, n/8], rows 0 2 4 6 1 3 5 7 of eight in
//                  nibbles 0 … 7; scales [G, n]
//   kSignedInt4    codes int8 [n, k/2], two's complement, even columns low; scales [n, G]
//   kModelOptInt4  codes uint8 [n/2, k], two's complement, even rows low; scales [n, G]
struct Int4Matrix {
  Packing packing = Packing::kPackedInt4;
  const StoredTensor* codes = nullptr;
  const StoredTensor* scales = nullptr;  // float32, bfloat16 or float16
  const StoredTensor* zeros = nullptr;   // null: all zero points are 8
  bool zeros_less_one = false;
  int64_t n = 0, k = 0, groups = 0;

  // Copies codes 0..15 of rows and columns (which begin and end at multiples of kInt4Word), two per
  // byte, low nibble first: out [rows, cols / 2].
  void CopyCodes(Range rows, Range cols, uint8_t* out) const;
  float Scale(int64_t row, int64_t group) const;
  uint8_t Zero(int64_t row, int64_t group) const;
  // Whether all zero points are 8, so that they need not be stored.
  bool ZerosAreEight() const;
};

}  // namespace switchyard
