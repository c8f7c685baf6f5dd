// Codes of 4-bit weights, and of panels with more bits, as unsigned operands of products of bytes:
// weight + FourBitOffset (cpu/int8_blocks.h).
//
// A codes class defines, for D = FourBitOps of an instruction set:
//   kZeros, kMinima: whether blocks have zero points, or minima
//   kBytes: whether operands are bytes of weight + 128, which may exceed 63
//   kPlain: whether operands are the nibbles themselves
//   kCodeBytes: bytes of the codes of a part of a panel (quant/panels.h)
//   Numbers(): the argument `numbers` of Operands if there are no zero points
//   Operands(chunk, v, s, step, numbers, low, high): loads vector v of the chunk, which holds eight
//     columns of each row, and sets `low` to the operands of the even columns and `high` to those
//     of the odd ones. Vectors are `step` bytes apart. s: v modulo four, a compile-time constant
#pragma once

#include <cstdint>

namespace switchyard::kernels::cpu::simd {

template <class Codes, class D = typename Codes::Device>
[[gnu::always_inline]] inline void NibbleOperands(const char* vector, typename D::I numbers,
                                                  typename D::I& low, typename D::I& high) {
  const typename D::I bytes = D::Load(vector);
  low = Codes::Low(bytes, numbers);
  high = Codes::High(bytes, numbers);
}

// Base of codes that consist of a nibble only. `Self` defines Low and High, which return the
// operands of the low and high nibbles of bytes, unless these are the nibbles themselves.
template <class D, class Self>
struct NibbleCodes {
  using Device = D;
  using I = typename D::I;
  static constexpr bool kZeros = false, kMinima = false, kBytes = false, kPlain = false;
  static constexpr int64_t kCodeBytes = 1024;
  static I Numbers() { return D::Set1(0); }
  static I Low(I bytes, I) { return D::LowNibbles(bytes); }
  static I High(I bytes, I) { return D::HighNibbles(bytes); }
  [[gnu::always_inline]] static void Operands(const char* chunk, int64_t v, int, int64_t step,
                                              I numbers, I& low, I& high) {
    NibbleOperands<Self, D>(chunk + v * step, numbers, low, high);
  }
};

template <class D>
struct Int4Codes : NibbleCodes<D, Int4Codes<D>> {
  using I = typename D::I;
  static constexpr bool kPlain = true;
};

template <class D>
struct Int4ZeroCodes : NibbleCodes<D, Int4ZeroCodes<D>> {
  using I = typename D::I;
  static constexpr bool kZeros = true;
  static I Low(I bytes, I zeros) { return D::AddBytes(D::LowNibbles(bytes), zeros); }
  static I High(I bytes, I zeros) { return D::AddBytes(D::HighNibbles(bytes), zeros); }
};

template <class D>
struct E2M1Codes : NibbleCodes<D, E2M1Codes<D>> {
  using I = typename D::I;
  static I Numbers() {  // operand of each code: twice its value, plus 12
    return D::Table(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  }
  static I Low(I bytes, I table) { return D::Lookup(table, D::LowNibbles(bytes)); }
  static I High(I bytes, I table) { return D::Lookup(table, D::HighNibbles(bytes)); }
};

// kNonLinear4 of quant/formats.h, as bytes of value + 128.
template <class D>
struct IQ4Codes : NibbleCodes<D, IQ4Codes<D>> {
  using I = typename D::I;
  static constexpr bool kBytes = true;
  static I Numbers() {
    return D::Table(1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241);
  }
  static I Low(I bytes, I table) { return D::Lookup(table, D::LowNibbles(bytes)); }
  static I High(I bytes, I table) { return D::Lookup(table, D::HighNibbles(bytes)); }
};

template <class D>
struct Q4KCodes : NibbleCodes<D, Q4KCodes<D>> {
  using I = typename D::I;
  static constexpr bool kMinima = true, kPlain = true;
};

// Inserts `count` high bits of each byte of `bits` into each operand: from bit `at` on into `low`,
// from bit at + count on into `high`.
template <class D, int at, int count>
[[gnu::always_inline]] inline void AddHighBits(typename D::I bits, typename D::I mask,
                                               typename D::I& low, typename D::I& high) {
  low = D::Or(low, D::template HighBits<at>(bits, mask));
  high = D::Or(high, D::template HighBits<at + count>(bits, mask));
}

constexpr int64_t kNibbleVectors = 16;  // vectors of nibbles in a part

// The fifth bits of four vectors of nibbles share one vector. These vectors follow the vectors of
// nibbles.
template <class D>
struct Q5KCodes : NibbleCodes<D, Q5KCodes<D>> {
  using I = typename D::I;
  static constexpr bool kMinima = true;
  static constexpr int64_t kCodeBytes = 1280;
  [[gnu::always_inline]] static void Operands(const char* chunk, int64_t v, int s, int64_t step,
                                              I numbers, I& low, I& high) {
    NibbleOperands<Q5KCodes, D>(chunk + v * step, numbers, low, high);
    const I bits = D::Load(chunk + (kNibbleVectors + v / 4) * step);
    const I mask = D::Set1(0x10101010);
    switch (s % 4) {
      case 0:
        return AddHighBits<D, 0, 1>(bits, mask, low, high);
      case 1:
        return AddHighBits<D, 2, 1>(bits, mask, low, high);
      case 2:
        return AddHighBits<D, 4, 1>(bits, mask, low, high);
      default:
        return AddHighBits<D, 6, 1>(bits, mask, low, high);
    }
  }
};

// The high two bits of two vectors of nibbles share one vector. These vectors follow the vectors of
// nibbles.
template <class D>
struct Q6KCodes : NibbleCodes<D, Q6KCodes<D>> {
  using I = typename D::I;
  static constexpr int64_t kCodeBytes = 1536;
  [[gnu::always_inline]] static void Operands(const char* chunk, int64_t v, int s, int64_t step,
                                              I numbers, I& low, I& high) {
    NibbleOperands<Q6KCodes, D>(chunk + v * step, numbers, low, high);
    const I bits = D::Load(chunk + (kNibbleVectors + v / 2) * step);
    const I mask = D::Set1(0x30303030);
    if (s % 2 == 0) {
      AddHighBits<D, 0, 2>(bits, mask, low, high);
    } else {
      AddHighBits<D, 4, 2>(bits, mask, low, high);
    }
  }
};

template <class D>
struct ByteCodes : NibbleCodes<D, ByteCodes<D>> {
  using I = typename D::I;
  static constexpr bool kBytes = true;
  static constexpr int64_t kCodeBytes = 2048;
  [[gnu::always_inline]] static void Operands(const char* chunk, int64_t v, int, int64_t step, I,
                                              I& low, I& high) {
    low = D::Load(chunk + 2 * v * step);
    high = D::Load(chunk + (2 * v + 1) * step);
  }
};

}  // namespace switchyard::kernels::cpu::simd
