// Operands that one task prepares for products of its own, each for several products: attention's
// queries, keys, values, probabilities and their gradients. Products of whole tensors prepare
// theirs themselves (product.h).
//
// In bfloat16 they are rounded as bf16_product.h says, and with AVX512_BF16 lie as the instruction
// reads them; the sums of a product are float32 and have the same bits in both forms.
#pragma once

#include <cstdint>
#include <type_traits>

#include "train/math/product.h"

namespace switchyard::train {

enum class OperandForm {
  kPlain,    // as they are
  kRounded,  // each element rounded, held as float32
  kPairs,    // two elements, neighbours along the inner dimension, in the bits of one float
};

// Of products of this dtype on this machine. What is held in float64 stays as it is.
OperandForm FormOfFloats(ProductDtype dtype);
template <typename T>
OperandForm FormOf(ProductDtype dtype) {
  return std::is_same_v<T, float> ? FormOfFloats(dtype) : OperandForm::kPlain;
}

// Floats that hold k elements along the inner dimension. In pairs the last of an odd number has
// zero for a neighbour, so parts of an operand begin at even elements.
inline int64_t Inner(OperandForm form, int64_t k) {
  return form == OperandForm::kPairs ? (k + 1) / 2 : k;
}
// Floats between rows whose columns are not the inner dimension: pairs are written kPanel at once.
inline int64_t AcrossStride(OperandForm form, int64_t n) {
  return form == OperandForm::kPairs ? (n + 63) / 64 * 64 : n;
}

// `in` is [n, d], its rows `row` apart.
//
// For products along d, as A: out [n, Inner(d)].
template <typename T>
void TakeRows(OperandForm form, const T* in, int64_t row, int64_t n, int64_t d, T* out);
// For products along d, as B: out [Inner(d), n], rows `stride` apart.
template <typename T>
void TakeColumns(OperandForm form, const T* in, int64_t row, int64_t n, int64_t d, T* out,
                 int64_t stride);
// For products along n, as B, or as A stored transposed: out [Inner(n), d], rows `stride` apart,
// which is AcrossStride(d) at least.
template <typename T>
void TakeAlong(OperandForm form, const T* in, int64_t row, int64_t n, int64_t d, T* out,
               int64_t stride);
// A row of n elements for products along n, as A, in place of what is there.
template <typename T>
void RoundInPlace(OperandForm form, T* row, int64_t n);

// The same, without a copy where nothing is rounded: `in` is dense, and what is returned is as
// TakeRows and TakeAlong with AcrossStride would have it in `room`.
template <typename T>
const T* RowsOf(OperandForm form, const T* in, int64_t n, int64_t d, T* room) {
  if (form == OperandForm::kPlain) return in;
  TakeRows(form, in, d, n, d, room);
  return room;
}
template <typename T>
const T* AlongOf(OperandForm form, const T* in, int64_t n, int64_t d, T* room) {
  if (form == OperandForm::kPlain) return in;
  TakeAlong(form, in, d, n, d, room, AcrossStride(form, d));
  return room;
}

// A whole B in panels of 64 columns, one after the other, each [k, 64]: a product reads one run of
// memory for each. B is [n, d] dense, for products along d or along n.
int64_t PanelsSize(int64_t inner, int64_t columns);
template <typename T>
void PackColumns(OperandForm form, const T* in, int64_t n, int64_t d, T* panels);
template <typename T>
void PackAlong(OperandForm form, const T* in, int64_t n, int64_t d, T* panels);
// c[m, n] (+)= a[m, k] · B, a as RowsOf has it, c dense; k before Inner.
template <typename T>
void MultiplyPanels(OperandForm form, const T* a, const T* panels, T* c, int64_t m, int64_t n,
                    int64_t k, bool accumulate);
// c[n, k] += a[m, n]ᵀ · b[m, k], both as AlongOf has them, c dense.
template <typename T>
void AddAlong(OperandForm form, const T* a, const T* b, T* c, int64_t m, int64_t n, int64_t k);

// The product of operands in this form on the calling thread; k is Inner's.
template <typename T>
void MultiplyPrepared(OperandForm form, const Product<T>& product);

}  // namespace switchyard::train
