// FourBitOps: operations for products of 4-bit weights, built from a few primitives of an
// instruction set. L, one per instruction set, defines these primitives:
//   Vec: its vector type (avx512/vec.h, avx2/vec.h)
//   I: vector of bytes and of int32 lanes
//   kLanes, kRows: outputs of a panel, and rows of x of a tile
//   Chains(m): partial sums per row for m rows of x. Few rows need several, because of latency
//   Load, Store, Set1, Add, Subtract, Multiply, Max: of int32 lanes; ToFloat, AsFloat
//   And, Or, Xor; ShiftLeft<n>, ShiftRight<n>: of 16-bit lanes; ShiftLeft32<n>, ShiftRight32<n>;
//     ShiftRightSigned<n>: of int32 lanes
//   ReplaceEqual(x, code, bits, other): lanes of `bits`, or of `other` where x equals the code
//   Table, Lookup: a table of sixteen bytes, and its bytes at the given nibbles
//   AddBytes: adds each byte
//   Widen, WidenSigned: kLanes bytes at an address, as int32 lanes
//   AddProducts(a, b, low, high, x): multiplies low with the four codes at x, and high with the
//   four
//     codes half a chunk later. Adds the products to lanes of a and b, whose sum is the result.
//     Operands are at most 63
//   AddByteProducts: the same for bytes of code + 128. kByteStarts: whether sums include the 128
//   kVectorBytes: bytes of each row that TransposeCodes transposes: four per lane
//   TransposeCodes(rows, at, count, out): bytes [at, at + count) of FourBitRows, zeros up to
//     kVectorBytes; writes kLanes vectors
//   Step(step): bytes between the vectors of a panel, given as `step`
//   StoreBytes(x, out): the lowest byte of each lane
//   BytesWithin(p, least, most): whether each of the 64 bytes at p is from `least` to `most`
#pragma once

#include <cstdint>

namespace switchyard::kernels::cpu::simd {

// Addresses of the weight rows of a panel.
template <int kLanes>
struct FourBitRows {
  const char* row[kLanes];
};

template <class L>
struct FourBitOps : L {
  using I = typename L::I;
  using F = typename L::Vec::F;

  static I LowNibbles(I x) { return L::And(x, L::Set1(0x0f0f0f0f)); }
  static I HighNibbles(I x) { return LowNibbles(L::template ShiftRight<4>(x)); }
  static I HighNibblesInPlace(I x) {  // times 16
    return L::And(x, L::Set1(static_cast<int32_t>(0xf0f0f0f0)));
  }

  // Moves bit b of each byte to bit 4 and clears the others. If `mask` has bits 4 and 5, moves bits
  // b and b + 1 to these.
  template <int b>
  static I HighBits(I x, I mask) {
    if constexpr (b < 4) {
      return L::And(L::template ShiftLeft<4 - b>(x), mask);
    } else if constexpr (b == 4) {
      return L::And(x, mask);
    } else {
      return L::And(L::template ShiftRight<b - 4>(x), mask);
    }
  }

  // Byte b of each int32 lane.
  template <int b>
  static I Byte(I x) {
    return L::And(L::template ShiftRight32<8 * b>(x), L::Set1(255));
  }

  // 2^(code - 128): half of e8m0. Code 0 is subnormal, code 255 is NaN.
  static F HalvedE8M0(I codes) {
    const I bits = L::Max(L::template ShiftLeft32<23>(codes), L::Set1(0x00400000));
    const I all = L::ReplaceEqual(codes, L::Set1(255), bits, L::Set1(0x7fc00000));
    return L::Vec::Mul(L::AsFloat(all), L::Vec::Set1(0.5f));
  }

  // The same for codes from 2 to 254.
  static F HalvedNormalE8M0(I codes) {
    return L::AsFloat(L::template ShiftLeft32<23>(L::Subtract(codes, L::Set1(1))));
  }

  // 16 - zero point, in all four bytes of each lane.
  static I ZeroOperands(I zeros) {
    return L::Multiply(L::Subtract(L::Set1(16), zeros), L::Set1(0x01010101));
  }
};

}  // namespace switchyard::kernels::cpu::simd
