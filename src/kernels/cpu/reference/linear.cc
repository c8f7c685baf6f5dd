#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/rounded_rows.h"
#include "kernels/reference.h"
#include "quant/activations.h"

namespace switchyard::kernels::reference {
namespace {

double Dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

float Activate(const GroupedMlpParams& p, float gate, float up) {
  if (p.activation == Activation::kRelu2) return up < 0.0f ? 0.0f : up * up;
  if (p.activation == Activation::kSwiGlu) return static_cast<float>(gate * Sigmoid(gate) * up);
  const double g = std::min(gate, p.limit);
  const double u = std::clamp(up, -p.limit, p.limit);
  if (p.activation == Activation::kSwiGluLimited) return static_cast<float>(g * Sigmoid(g) * u);
  return static_cast<float>(g * Sigmoid(p.alpha * g) * (u + 1));
}

// Exact sums of int8 codes, then scaling in the fixed rounding order of all kernels.
void LinearInt8(const LinearParams& p) {
  std::vector<int8_t> x(p.w.k);
  for (int64_t m = 0; m < p.m; ++m) {
    const Int8Row row = QuantizeInt8Row(p.x + m * p.ldx, p.w.k, x.data());
    for (int64_t n = 0; n < p.w.n; ++n) {
      const int64_t stored_row = p.w.row0 + n * p.w.row_step;
      const auto* w = static_cast<const int8_t*>(p.w.data) + stored_row * p.w.stored_k + p.w.col0;
      int32_t sum = 0;
      for (int64_t k = 0; k < p.w.k; ++k) sum += x[k] * w[k];
      float scale;
      std::memcpy(&scale, static_cast<const char*>(p.w.scales) + stored_row * 4, sizeof(scale));
      float value = static_cast<float>(sum) * row.scale * scale;
      if (p.bias != nullptr) value += p.bias[n];
      float& y = p.y[m * p.ldy + n];
      y = p.accumulate ? y + value : value;
    }
  }
}

}  // namespace

void Linear(const LinearParams& p) {
  if (cpu::UsesInt8Product(p.w)) return LinearInt8(p);
  std::vector<float> x(p.m * p.w.k), row(p.w.k);
  for (int64_t m = 0; m < p.m; ++m) {
    RoundActivations(p.w.activation, p.w.input_scale, p.x + m * p.ldx, p.w.k, &x[m * p.w.k]);
  }
  for (int64_t n = 0; n < p.w.n; ++n) {
    DequantizeRow(p.w, n, 0, p.w.k, row.data());
    for (int64_t m = 0; m < p.m; ++m) {
      double sum = Dot(&x[m * p.w.k], row.data(), p.w.k);
      if (p.bias != nullptr) sum += p.bias[n];
      float& y = p.y[m * p.ldy + n];
      y = p.accumulate ? static_cast<float>(y + sum) : static_cast<float>(sum);
    }
  }
}

void GroupedMlp(const GroupedMlpParams& p) {
  GroupedGateUp(p);
  GroupedDown(p);
}

void GroupedGateUp(const GroupedMlpParams& p) {
  for (size_t e = 0; e < p.experts.size(); ++e) {
    const ExpertWeights& w = p.experts[e];
    std::vector<float> gate(w.gate.n), up(w.gate.n);
    for (int64_t r = p.offsets[e]; r < p.offsets[e + 1]; ++r) {
      const float* x = p.x + (p.row_ids != nullptr ? p.row_ids[r] : r) * p.ldx;
      float* middle = p.scratch + r * w.gate.n;
      Linear({.x = x, .w = w.gate, .bias = w.gate_bias, .y = gate.data(), .m = 1});
      Linear({.x = x, .w = w.up, .bias = w.up_bias, .y = up.data(), .m = 1});
      for (int64_t i = 0; i < w.gate.n; ++i) middle[i] = Activate(p, gate[i], up[i]);
    }
  }
}

void GroupedDown(const GroupedMlpParams& p) {
  for (size_t e = 0; e < p.experts.size(); ++e) {
    const ExpertWeights& w = p.experts[e];
    for (int64_t r = p.offsets[e]; r < p.offsets[e + 1]; ++r) {
      Linear({.x = p.scratch + r * w.gate.n,
              .w = w.down,
              .bias = w.down_bias,
              .y = p.out + r * p.ldo,
              .m = 1});
    }
  }
}

void HeadLinear(const HeadLinearParams& p) {
  for (size_t h = 0; h < p.w.size(); ++h) {
    WeightView w = p.w[h];
    const float* x = p.x + h * p.head_stride_x;
    float* y = p.y + h * p.head_stride_y;
    if (p.transposed) {
      w.activation = ActivationFormat::kNone;
      Linear({.x = x, .ldx = p.ldx, .w = w, .y = y, .ldy = p.ldy, .m = p.m});
      continue;
    }
    // The stored rows are the reduction dimension, the stored columns are the outputs.
    std::vector<float> row(w.k);
    std::vector<double> sums(p.m * w.k);
    for (int64_t r = 0; r < w.n; ++r) {
      DequantizeRow(w, r, 0, w.k, row.data());
      for (int64_t t = 0; t < p.m; ++t) {
        for (int64_t c = 0; c < w.k; ++c) sums[t * w.k + c] += double{x[t * p.ldx + r]} * row[c];
      }
    }
    for (int64_t t = 0; t < p.m; ++t) {
      for (int64_t c = 0; c < w.k; ++c) y[t * p.ldy + c] = static_cast<float>(sums[t * w.k + c]);
    }
  }
}

void Embed(const EmbedParams& p) {
  for (int64_t t = 0; t < p.m; ++t) {
    float* out = p.out + t * p.w.k;
    const int64_t row = int64_t{p.ids[t]} - p.first;
    if (row < 0 || row >= p.w.n) {
      std::fill_n(out, p.w.k, 0.0f);
    } else {
      DequantizeRow(p.w, row, 0, p.w.k, out);
      for (int64_t i = 0; p.scale != 1.0f && i < p.w.k; ++i) out[i] *= p.scale;
    }
  }
}

}  // namespace switchyard::kernels::reference
