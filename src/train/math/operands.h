// Operand packing for tasks that use an operand in several products: attention's queries, keys,
// values, probabilities and their gradients. Products of whole tensors pack their own operands
// (product.h).
//
// For bfloat16, operands are rounded as in bf16_product.h, and with AVX512_BF16 they are packed in
// the layout of the instruction. Accumulation is float32, with equal bits in both forms.
#pragma once

#include <cstdint>
#include <type_traits>

#include "train/math/product.h"

namespace switchyard::train {

enum class OperandForm {
  kPlain,    // elements are copied unchanged
  kRounded,  // each element rounded, stored as float32
  kPairs,    // two elements, neighbors along the inner dimension, in the bits of one float
};

// The form for products of this dtype on this machine. float64 operands are never changed.
OperandForm FormOfFloats(ProductDtype dtype);
template <typename T>
OperandForm FormOf(ProductDtype dtype) {
  return std::is_same_v<T, float> ? FormOfFloats(dtype) : OperandForm::kPlain;
}

// Number of floats that hold k elements along the inner dimension. With kPairs, if k is odd, the
// last element is paired with zero. A part of an operand must begin at an even element, so that
// pairs are not split.
inline int64_t InnerFloats(OperandForm form, int64_t k) {
  return form == OperandForm::kPairs ? (k + 1) / 2 : k;
}
// Row stride, in floats, of an operand whose rows run along the outer dimension n. Pairs are
// written in multiples of kPanel.
inline int64_t PairStride(OperandForm form, int64_t n) {
  return form == OperandForm::kPairs ? (n + 63) / 64 * 64 : n;
}

// The functions below pack the matrix `in` [n, d], whose row stride is `row`.
//
// For products whose inner dimension is d, as operand A: out [n, InnerFloats(d)].
template <typename T>
void PackOperandRows(OperandForm form, const T* in, int64_t row, int64_t n, int64_t d, T* out);
// For products whose inner dimension is d, as operand B: out [InnerFloats(d), n] with row
// stride `stride`.
template <typename T>
void PackTransposed(OperandForm form, const T* in, int64_t row, int64_t n, int64_t d, T* out,
                    int64_t stride);
// For products whose inner dimension is n, as operand B or as transposed A: out
// [InnerFloats(n), d] with row stride `stride`, at least PairStride(d).
template <typename T>
void PackAlongRows(OperandForm form, const T* in, int64_t row, int64_t n, int64_t d, T* out,
                   int64_t stride);
// Packs a row of n elements in place, for products whose inner dimension is n, as operand A.
template <typename T>
void RoundInPlace(OperandForm form, T* row, int64_t n);

// Like PackOperandRows and PackAlongRows (with PairStride), but without a copy if nothing is
// rounded: then they return `in`. `in` is dense; `room` is the buffer for a packed result.
template <typename T>
const T* PackedRows(OperandForm form, const T* in, int64_t n, int64_t d, T* room) {
  if (form == OperandForm::kPlain) return in;
  PackOperandRows(form, in, d, n, d, room);
  return room;
}
template <typename T>
const T* PackedAlong(OperandForm form, const T* in, int64_t n, int64_t d, T* room) {
  if (form == OperandForm::kPlain) return in;
  PackAlongRows(form, in, d, n, d, room, PairStride(form, d));
  return room;
}

// Packs a whole operand B in consecutive panels of 64 columns, each [k, 64], so that a product
// reads one contiguous block for each panel. B is [n, d] dense, and the inner dimension k is d or
// n.
int64_t PanelsSize(int64_t inner, int64_t columns);
template <typename T>
void PackColumns(OperandForm form, const T* in, int64_t n, int64_t d, T* panels);
template <typename T>
void PackAlong(OperandForm form, const T* in, int64_t n, int64_t d, T* panels);
// c[m, n] (+)= a[m, k] · B with a from PackedRows and c dense; k counts elements, not floats.
template <typename T>
void MultiplyPanels(OperandForm form, const T* a, const T* panels, T* c, int64_t m, int64_t n,
                    int64_t k, bool accumulate);
// c[n, k] += a[m, n]ᵀ · b[m, k], both from PackedAlong, c dense.
template <typename T>
void AccumulateAlongRows(OperandForm form, const T* a, const T* b, T* c, int64_t m, int64_t n,
                         int64_t k);

// Multiplies operands of this form on the calling thread. k counts floats along the inner
// dimension, as InnerFloats returns them.
template <typename T>
void MultiplyPrepared(OperandForm form, const Product<T>& product);

}  // namespace switchyard::train
