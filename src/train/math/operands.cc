#include "train/math/operands.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "core/check.h"
#include "train/math/bf16_product.h"
#include "train/math/kernel_table.h"
#include "train/math/row_math.h"

namespace switchyard::train {
namespace {

void RoundAll(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = RoundedToBFloat16(x[i]);
}

// Thread-local buffer for the pairs of each row, before the transpose; grows and is reused.
float* Scratch(int64_t count) {
  static thread_local std::vector<float> memory;
  if (static_cast<int64_t>(memory.size()) < count) memory.resize(count);
  return memory.data();
}

}  // namespace

OperandForm FormOfFloats(ProductDtype dtype) {
  if (dtype == ProductDtype::kFloat32) return OperandForm::kPlain;
  return ActivePairKernels() != nullptr ? OperandForm::kPairs : OperandForm::kRounded;
}

template <typename T>
void PackOperandRows(OperandForm form, const T* in, int64_t row, int64_t n, int64_t d, T* out) {
  if constexpr (std::is_same_v<T, float>) {
    if (form == OperandForm::kPairs)
      return ActivePairKernels()->round_rows(in, row, n, d, out, InnerFloats(form, d));
  }
  CopyRows(in, row, n, d, out, d);
  if constexpr (std::is_same_v<T, float>) {
    if (form == OperandForm::kRounded) RoundAll(out, n * d);
  }
}

template <typename T>
void PackTransposed(OperandForm form, const T* in, int64_t row, int64_t n, int64_t d, T* out,
                    int64_t stride) {
  if constexpr (std::is_same_v<T, float>) {
    if (form == OperandForm::kPairs) {
      const int64_t pairs = InnerFloats(form, d);
      float* rounded = Scratch(n * pairs);
      PackOperandRows(form, in, row, n, d, rounded);
      TransposeRows(rounded, pairs, n, pairs, out, stride);
      return;
    }
  }
  TransposeRows(in, row, n, d, out, stride);
  if constexpr (std::is_same_v<T, float>) {
    if (form == OperandForm::kRounded)
      for (int64_t i = 0; i < d; ++i) RoundAll(out + i * stride, n);
  }
}

template <typename T>
void PackAlongRows(OperandForm form, const T* in, int64_t row, int64_t n, int64_t d, T* out,
                   int64_t stride) {
  if constexpr (std::is_same_v<T, float>) {
    if (form == OperandForm::kPairs)
      return ActivePairKernels()->pair_rows(in, row, n, d, out, stride);
  }
  CopyRows(in, row, n, d, out, stride);
  if constexpr (std::is_same_v<T, float>) {
    if (form == OperandForm::kRounded)
      for (int64_t i = 0; i < n; ++i) RoundAll(out + i * stride, d);
  }
}

template <typename T>
void RoundInPlace(OperandForm form, T* row, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    if (form == OperandForm::kPairs) ActivePairKernels()->round_rows(row, 0, 1, n, row, 0);
    if (form == OperandForm::kRounded) RoundAll(row, n);
  }
}

int64_t PanelsSize(int64_t inner, int64_t columns) {
  return (columns + kPanel - 1) / kPanel * kPanel * inner;
}

template <typename T>
void PackColumns(OperandForm form, const T* in, int64_t n, int64_t d, T* panels) {
  for (int64_t j = 0; j < n; j += kPanel)
    PackTransposed(form, in + j * d, d, std::min(kPanel, n - j), d,
                   panels + j * InnerFloats(form, d), kPanel);
}

template <typename T>
void PackAlong(OperandForm form, const T* in, int64_t n, int64_t d, T* panels) {
  for (int64_t j = 0; j < d; j += kPanel)
    PackAlongRows(form, in + j, d, n, std::min(kPanel, d - j), panels + j * InnerFloats(form, n),
                  kPanel);
}

template <typename T>
void MultiplyPanels(OperandForm form, const T* a, const T* panels, T* c, int64_t m, int64_t n,
                    int64_t k, bool accumulate) {
  const int64_t inner = InnerFloats(form, k);
  for (int64_t j = 0; j < n; j += kPanel) {
    MultiplyPrepared<T>(form, {.a = a,
                               .a_row = inner,
                               .b = panels + j * inner,
                               .b_row = kPanel,
                               .c = c + j,
                               .ldc = n,
                               .m = m,
                               .n = std::min(kPanel, n - j),
                               .k = inner,
                               .accumulate = accumulate});
  }
}

template <typename T>
void AccumulateAlongRows(OperandForm form, const T* a, const T* b, T* c, int64_t m, int64_t n,
                         int64_t k) {
  MultiplyPrepared<T>(form, {.a = a,
                             .a_row = 1,
                             .a_col = PairStride(form, n),
                             .b = b,
                             .b_row = PairStride(form, k),
                             .c = c,
                             .ldc = k,
                             .m = n,
                             .n = k,
                             .k = InnerFloats(form, m),
                             .accumulate = true});
}

template <typename T>
void MultiplyPrepared(OperandForm form, const Product<T>& p) {
  if constexpr (std::is_same_v<T, float>) {
    if (p.m == 0 || p.n == 0) return;
    if (form == OperandForm::kPairs) {
      CHECK_EQ(p.b_col, 1);
      CHECK_EQ(p.scale, 1.0f);
      ActivePairKernels()->multiply({.a = p.a,
                                     .a_row = p.a_row,
                                     .a_col = p.a_col,
                                     .b = p.b,
                                     .b_row = p.b_row,
                                     .c = p.c,
                                     .ldc = p.ldc,
                                     .m = p.m,
                                     .n = p.n,
                                     .k = p.k,
                                     .accumulate = p.accumulate});
      return;
    }
    if (form == OperandForm::kRounded) {
      const FlushSubnormals flush(true);
      return MultiplySerial(p);
    }
  }
  MultiplySerial(p);
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define SWITCHYARD_OPERANDS(T)                                                                 \
  template void PackOperandRows(OperandForm, const T*, int64_t, int64_t, int64_t, T*);         \
  template void PackTransposed(OperandForm, const T*, int64_t, int64_t, int64_t, T*, int64_t); \
  template void PackAlongRows(OperandForm, const T*, int64_t, int64_t, int64_t, T*, int64_t);  \
  template void RoundInPlace(OperandForm, T*, int64_t);                                        \
  template void PackColumns(OperandForm, const T*, int64_t, int64_t, T*);                      \
  template void PackAlong(OperandForm, const T*, int64_t, int64_t, T*);                        \
  template void MultiplyPanels(OperandForm, const T*, const T*, T*, int64_t, int64_t, int64_t, \
                               bool);                                                          \
  template void AccumulateAlongRows(OperandForm, const T*, const T*, T*, int64_t, int64_t,     \
                                    int64_t);                                                  \
  template void MultiplyPrepared(OperandForm, const Product<T>&);
SWITCHYARD_OPERANDS(float)
SWITCHYARD_OPERANDS(double)
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace switchyard::train
