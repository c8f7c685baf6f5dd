#include <cmath>
#include <cstring>

#include "core/check.h"
#include "kernels/cache_rows.h"
#include "kernels/reference.h"

namespace switchyard::kernels::reference {

void RmsNorm(const RmsNormParams& p) {
  for (int64_t t = 0; t < p.m; ++t) {
    const float* x = p.x + t * p.ldx;
    double sum = 0;
    for (int64_t i = 0; i < p.n; ++i) sum += double{x[i]} * x[i];
    const double scale = 1.0 / std::sqrt(sum / static_cast<double>(p.n) + p.eps);
    for (int64_t i = 0; i < p.n; ++i) {
      p.y[t * p.ldy + i] = static_cast<float>(x[i] * scale * p.weight[i]);
    }
  }
}

void LayerNorm(const LayerNormParams& p) {
  const auto n = static_cast<double>(p.n);
  for (int64_t t = 0; t < p.m; ++t) {
    const float* x = p.x + t * p.ldx;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < p.n; ++i) sum += x[i];
    const double mean = sum / n;
    for (int64_t i = 0; i < p.n; ++i) squares += (x[i] - mean) * (x[i] - mean);
    const double scale = 1.0 / std::sqrt(squares / n + p.eps);
    for (int64_t i = 0; i < p.n; ++i)
      p.y[t * p.ldy + i] = static_cast<float>((x[i] - mean) * scale * p.weight[i] + p.bias[i]);
  }
}

void AddInPlace(float* y, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] += x[i];
}

void RoundTo(DType dtype, float* x, int64_t count) {
  if (dtype == DType::kF32) return;
  CHECK(dtype == DType::kBF16 || dtype == DType::kF16);
  for (int64_t i = 0; i < count; ++i) {
    x[i] = dtype == DType::kBF16 ? ToFloat(ToBF16(x[i])) : ToFloat(ToF16(x[i]));
  }
}

void Rope(const RopeParams& p) {
  const int64_t half = p.rotary_dim / 2;
  for (int64_t t = 0; t < p.m; ++t) {
    const float* cosine = p.cos_sin + p.positions[t] * p.rotary_dim;
    const float* sine = cosine + half;
    for (int64_t h = 0; h < p.heads; ++h) {
      float* x = p.x + t * p.ldx + h * p.head_dim + p.rotary_offset;
      for (int64_t i = 0; i < half; ++i) {
        float& a = p.interleaved ? x[2 * i] : x[i];
        float& b = p.interleaved ? x[2 * i + 1] : x[i + half];
        const float rotated_a = a * cosine[i] - b * sine[i];
        b = b * cosine[i] + a * sine[i];
        a = rotated_a;
      }
    }
  }
}

void StoreKv(const StoreKvParams& p) {
  for (int64_t t = 0; t < p.m; ++t) WriteCacheRow(p, t);
}

}  // namespace switchyard::kernels::reference
