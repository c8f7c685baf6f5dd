// Blocks of ggml's storage types, as GGUF files hold them (ggml/src/ggml-common.h, ggml-quants.c of
// https://github.com/ggml-org/llama.cpp). Reader only.
#pragma once

#include <cstdint>
#include <string>

#include "core/gguf.h"

namespace switchyard {

// Whether DequantizeGgml reads the type: F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, IQ4_XS,
// MXFP4.
bool ReadsGgml(const GgmlType& type);
std::string ReadableGgmlTypes();  // names of these types, for error messages

// Dequantizes `count` elements, a multiple of the block size, from the blocks at `data`. Products
// of scales and codes are rounded to float32 in the order of ggml's reference code, so that values
// are bitwise equal to its values. Elements of a block, in file order:
//   Q8_0    f16 d, int8 q[32]                     w = d · q
//   Q4_0    f16 d, 16 bytes                       w = d · (q - 8); byte j holds q of j and j + 16
//   MXFP4   e8m0 e, 16 bytes                      w = 2^(e-127) · e2m1; nibbles as Q4_0
//   Q4_K    f16 d, f16 dmin, 6-bit (s, m) of 8 groups of 32, 4-bit q     w = d s q - dmin m
//   Q5_K    as Q4_K, with the fifth bits of q in 32 bytes before the others
//   Q6_K    4 low bits, 2 high bits, int8 s of 16 groups of 16, f16 d    w = d s (q - 32)
//   IQ4_XS  f16 d, 6-bit s of 8 groups of 32, 4-bit indices of a table   w = d (s - 32) t[q]
void DequantizeGgml(const GgmlType& type, const uint8_t* data, int64_t count, float* out);

// Scale and minimum of group `j` of 8 of Q4_K and Q5_K, packed in 12 bytes. Bytes 0 to 3 hold the
// low 6 bits of the first four scales, bytes 4 to 7 those of the first four minima. The last four
// scales and minima have their low 4 bits in bytes 8 to 11, and their high 2 bits in the upper bits
// of bytes 0 to 7.
struct GgmlScaleMin {
  int scale, min;
};
GgmlScaleMin UnpackGgmlScaleMin(const uint8_t* packed, int j);

// Brings the codes in the 16 bytes of a Q4_0 or MXFP4 block into the order of kInt4Group and kMxfp4
// views: two per byte, low nibble first. `out` has 16 bytes.
void ReorderGgmlNibbles(const uint8_t* in, uint8_t* out);

}  // namespace switchyard
