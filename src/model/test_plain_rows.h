// For tests: layers that read hidden rows, computed in double precision, one row after another.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "model/forward_batch.h"
#include "model/weights/testing.h"

namespace switchyard::testing {

using Row = std::vector<double>;

// A matrix or vector of a checkpoint.
inline Row ValuesOf(const RawTensor& t) {
  const Tensor f =
      Tensor::View(t.bytes.data(), *ParseSafetensorsDType(t.dtype), t.shape).ToFloat32();
  return {f.span<float>().begin(), f.span<float>().end()};
}

inline Row JoinRows(Row a, const Row& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Row PartOf(const Row& row, int64_t first, int64_t count) {
  return {row.begin() + first, row.begin() + first + count};
}

inline void AddTo(Row& to, const Row& x) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += x[i];
}

inline double Dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// w [n, x.size()] · x
inline Row Multiply(const Row& w, const Row& x) {
  Row y;
  for (auto row = w.begin(); row != w.end(); row += std::ssize(x))
    y.push_back(Dot(&*row, x.data(), std::ssize(x)));
  return y;
}

// Linears and norms of a checkpoint, by their names without ".weight".
class PlainLinears {
 public:
  explicit PlainLinears(const RawTensors& tensors) : tensors_(tensors) {}

  Row Project(const std::string& name, const Row& x) const {
    Row y = Multiply(ValuesOf(tensors_.at(name + ".weight")), x);
    if (tensors_.contains(name + ".bias")) AddTo(y, ValuesOf(tensors_.at(name + ".bias")));
    return y;
  }
  Row Norm(Row x, const std::string& name, double eps) const {
    const Row w = ValuesOf(tensors_.at(name + ".weight"));
    const double squares = Dot(x.data(), x.data(), std::ssize(x));
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= scale * w[i];
    return x;
  }
  // `prefix`: of gate_proj, up_proj and down_proj.
  Row FeedForward(const std::string& prefix, const Row& x) const {
    Row gate = Project(prefix + "gate_proj", x);
    const Row up = Project(prefix + "up_proj", x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    return Project(prefix + "down_proj", gate);
  }

 private:
  const RawTensors& tensors_;
};

inline constexpr int32_t kPlainPages[] = {0, 1, 2, 3};

// Rows of one sequence from position `first` on, with the logits of the last one. Hidden rows are
// in the same order.
inline ForwardBatch PlainBatchOf(const std::vector<int32_t>& tokens, int32_t first) {
  ForwardBatch batch;
  batch.tokens = tokens;
  const auto rows = static_cast<int32_t>(tokens.size());
  for (int32_t i = 0; i < rows; ++i) {
    batch.positions.push_back(first + i);
    batch.slots.push_back(first + i);
    batch.hidden_rows.push_back(i);
  }
  batch.sequences.push_back(
      {.row_begin = 0, .rows = rows, .kv_len = first + rows, .pages = kPlainPages});
  batch.logit_rows = {rows - 1};
  return batch;
}

inline void ExpectNear(const float* got, const Row& want, const char* what) {
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], 2e-4 * (1 + std::fabs(want[i]))) << what << " " << i;
}

}  // namespace switchyard::testing
