// Layout of packed rows, and row-wise and elementwise operations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/parallel.h"
#include "core/tensor.h"

namespace switchyard::train {

// Layout of packed rows: the sequence of each row and its position.

// Packed sequences with causal visibility: a row attends to itself and to the earlier rows of its
// sequence.
struct RowLayout {
  std::vector<int32_t> begins;     // [sequences + 1], ascending from 0
  std::vector<int32_t> positions;  // [m], counted from 0 in each sequence

  int64_t rows() const { return static_cast<int64_t>(positions.size()); }
  int64_t sequences() const { return begins.empty() ? 0 : static_cast<int64_t>(begins.size()) - 1; }

  static RowLayout Of(std::vector<int32_t> begins) {
    RowLayout layout;
    for (size_t s = 0; s + 1 < begins.size(); ++s)
      for (int32_t t = begins[s]; t < begins[s + 1]; ++t) layout.positions.push_back(t - begins[s]);
    layout.begins = std::move(begins);
    return layout;
  }
};

// Row-wise and elementwise operations, forward and backward. Templates for float and double. All
// are bitwise independent of the number of threads.

// Rows of n elements with stride `ld`.
template <typename T>
struct NormShape {
  int64_t m = 0, n = 0;
  int64_t ldx = 0;  // stride of x and dx; y and dy are dense
  T eps = 0;
};
// y[t] = x[t] / sqrt(mean(x[t]²) + eps) · weight
template <typename T>
void RmsNorm(const NormShape<T>& shape, const T* x, const T* weight, T* y, ThreadPool& pool);
// dx (+)= the gradient of x; dweight += the gradient of the weight, unless dweight is null.
template <typename T>
void RmsNormGradient(const NormShape<T>& shape, const T* x, const T* weight, const T* dy, T* dx,
                     bool accumulate, T* dweight, ThreadPool& pool);

// Rotary position embedding in place on the elements [offset, offset + rotary_dim) of each head.
template <typename T>
struct RopeShape {
  int64_t m = 0, heads = 0;
  int64_t row = 0, head = 0;  // strides of a row and of a head
  int64_t rotary_dim = 0, offset = 0;
  bool interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2)
  const int32_t* positions = nullptr;
  const float* cos_sin = nullptr;  // table of BuildCosSin (model/rope.h)
};
// `backward`: rotates in the opposite direction, which converts gradients of the output to
// gradients of the input.
template <typename T>
void Rope(const RopeShape<T>& shape, T* x, bool backward, ThreadPool& pool);

// out = silu(gate) · up, elementwise.
template <typename T>
void SwiGlu(const T* gate, const T* up, T* out, int64_t count, ThreadPool& pool);
// dgate and dup may alias gate and up.
template <typename T>
void SwiGluGradient(const T* gate, const T* up, const T* dout, T* dgate, T* dup, int64_t count,
                    ThreadPool& pool);

// y += x
template <typename T>
void Add(T* y, const T* x, int64_t count, ThreadPool& pool);

// x[i] = e^(x[i] - shift); returns the sum.
template <typename T>
T ExpSum(T* x, int64_t n, T shift);

// Gathers rows `ids` of the table. The backward pass adds the gradient of row t to table row
// ids[t], in ascending order of t.
template <typename T>
void Embed(std::span<const int32_t> ids, const T* table, int64_t width, T* out, ThreadPool& pool);
template <typename T>
void EmbedGradient(std::span<const int32_t> ids, const T* dout, int64_t width, T* dtable,
                   ThreadPool& pool);

}  // namespace switchyard::train
