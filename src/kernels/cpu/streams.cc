// Residual streams on a thread pool. Plain loops, whose bits are the same on every instruction set.
#include "kernels/streams.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/check.h"
#include "kernels/cpu/driver.h"

namespace switchyard::kernels {
namespace {

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Divides the n elements at x, `stride` apart, by their sum plus eps.
void DivideBySum(float* x, int64_t n, int64_t stride, float eps) {
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum += x[i * stride];
  for (int64_t i = 0; i < n; ++i) x[i * stride] /= sum + eps;
}

void Softmax(float* x, int64_t n) {
  const float largest = *std::max_element(x, x + n);
  for (int64_t i = 0; i < n; ++i) x[i] = std::exp(x[i] - largest);
  DivideBySum(x, n, 1, 0.0f);
}

// The matrix [n, n] from its logits, in place.
void Normalise(const CollapseStreamsParams& p, float* matrix) {
  const auto rows = [&](float eps) {
    for (int64_t i = 0; i < p.n; ++i) DivideBySum(matrix + i * p.n, p.n, 1, eps);
  };
  const auto columns = [&] {
    for (int64_t i = 0; i < p.n; ++i) DivideBySum(matrix + i, p.n, p.n, p.eps);
  };
  for (int64_t i = 0; i < p.n; ++i) Softmax(matrix + i * p.n, p.n);
  for (int64_t i = 0; i < p.n * p.n; ++i) matrix[i] += p.eps;
  columns();
  for (int iteration = 1; iteration < p.iterations; ++iteration) {
    rows(p.eps);
    columns();
  }
}

void CollapseRow(const CollapseStreamsParams& p, int64_t t) {
  const int64_t width = p.mix ? StreamLogits(p.n) : p.n;
  const float* logits = p.logits + t * width;
  const float r = 1.0f / std::sqrt(p.squares[t] / static_cast<float>(p.n * p.width) + p.norm_eps);
  const auto logit = [&](int64_t i, int part) { return r * logits[i] * p.scale[part] + p.base[i]; };
  const float* x = p.x + t * p.n * p.width;
  float* y = p.y + t * p.width;
  std::fill_n(y, p.width, 0.0f);
  for (int64_t i = 0; i < p.n; ++i) {
    const float pre = Sigmoid(logit(i, 0)) + p.eps;
    for (int64_t c = 0; c < p.width; ++c) y[c] += pre * x[i * p.width + c];
  }
  if (!p.mix) return;
  float *post = p.mix + t * StreamMix(p.n), *matrix = post + p.n;
  for (int64_t i = 0; i < p.n; ++i) post[i] = 2.0f * Sigmoid(logit(p.n + i, 1));
  for (int64_t i = 0; i < p.n * p.n; ++i) matrix[i] = logit(2 * p.n + i, 2);
  Normalise(p, matrix);
}

void ExpandRow(const ExpandStreamsParams& p, int64_t t) {
  float* x = p.x + t * p.n * p.width;
  const float *post = p.mix + t * StreamMix(p.n), *matrix = post + p.n;
  const float* branch = p.branch + t * p.width;
  float* old = cpu::ThreadScratch(p.n * p.width);
  std::copy_n(x, p.n * p.width, old);
  for (int64_t k = 0; k < p.n; ++k) {
    float* out = x + k * p.width;
    for (int64_t c = 0; c < p.width; ++c) out[c] = post[k] * branch[c];
    for (int64_t j = 0; j < p.n; ++j) {
      const float factor = matrix[j * p.n + k];
      for (int64_t c = 0; c < p.width; ++c) out[c] += factor * old[j * p.width + c];
    }
  }
}

}  // namespace

void CollapseStreams(const CollapseStreamsParams& p, ThreadPool& pool) {
  CHECK(p.n >= 1 && p.n <= kMaxStreams);
  cpu::RunRows(pool, p.m, p.n * p.width, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) CollapseRow(p, t);
  });
}

void ExpandStreams(const ExpandStreamsParams& p, ThreadPool& pool) {
  CHECK(p.n >= 1 && p.n <= kMaxStreams);
  cpu::RunRows(pool, p.m, p.n * p.width, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) ExpandRow(p, t);
  });
}

}  // namespace switchyard::kernels
