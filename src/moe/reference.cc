#include "moe/reference.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "moe/rows.h"

namespace switchyard {
namespace {

using Row = std::vector<float>;

Row Product(const WeightView& w, std::span<const float> x, const float* bias) {
  Row y(w.n), row(w.k);
  for (int64_t i = 0; i < w.n; ++i) {
    DequantizeRow(w, i, 0, w.k, row.data());
    double sum = bias ? bias[i] : 0.0;
    for (int64_t j = 0; j < w.k; ++j) sum += double{row[j]} * x[j];
    y[i] = static_cast<float>(sum);
  }
  return y;
}

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

Row Expert(const MoeLayerConfig& config, const kernels::ExpertWeights& w,
           std::span<const float> x) {
  const Row gate = Product(w.gate, x, w.gate_bias), up = Product(w.up, x, w.up_bias);
  Row middle(gate.size());
  for (size_t i = 0; i < middle.size(); ++i) {
    double g = gate[i], u = up[i], slope = 1.0;
    if (config.activation == kernels::Activation::kSwiGluClamped) {
      const double limit = config.swiglu_limit;
      g = std::min(g, limit);
      u = std::clamp(u, -limit, limit) + 1.0;
      slope = config.swiglu_alpha;
    }
    middle[i] = static_cast<float>(g * Sigmoid(slope * g) * u);
  }
  return Product(w.down, middle, w.down_bias);
}

Row Rounded(DType dtype, std::span<const float> x) {
  std::vector<std::byte> stored(x.size() * SizeOf(dtype));
  Row y(x.size());
  StoreRow(dtype, x.data(), x.size(), stored.data());
  LoadRow(dtype, stored.data(), x.size(), y.data());
  return y;
}

}  // namespace

void RoutedReference(const MoeLayerConfig& config, const MoeLayerWeights& weights, DType row_dtype,
                     const float* hidden, const TopK& topk, float* out) {
  const int64_t h = config.hidden;
  for (int64_t t = 0; t < topk.tokens; ++t) {
    const Row x = Rounded(row_dtype, {hidden + t * h, static_cast<size_t>(h)});
    std::vector<double> sum(h, 0.0);
    for (int j = 0; j < topk.k; ++j) {
      const int32_t expert = topk.ids[t * topk.k + j];
      if (expert < 0) continue;
      const Row y = Rounded(row_dtype, Expert(config, weights.experts[expert], x));
      for (int64_t i = 0; i < h; ++i) sum[i] += double{topk.weights[t * topk.k + j]} * y[i];
    }
    std::ranges::copy(sum, out + t * h);
  }
}

void MoeReference(const MoeLayerConfig& config, const MoeLayerWeights& weights, DType row_dtype,
                  const float* hidden, int64_t tokens, float* out) {
  const int64_t h = config.hidden;
  const auto token = [&](int64_t t) { return std::span(hidden + t * h, h); };

  std::vector<float> logits;
  for (int64_t t = 0; t < tokens; ++t) {
    const Row row = Product(weights.router.w, token(t), weights.router.bias);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  ThreadPool one_thread(1);
  TopK topk;
  SelectExperts(config.router, logits.data(), tokens, weights.router.correction_bias, &topk,
                one_thread);
  RoutedReference(config, weights, row_dtype, hidden, topk, out);

  if (!weights.has_shared) return;
  for (int64_t t = 0; t < tokens; ++t) {
    const Row y = Expert(config, weights.shared, token(t));
    const double open = weights.shared_gate.defined()
                            ? Sigmoid(Product(weights.shared_gate, token(t), nullptr)[0])
                            : 1.0;
    for (int64_t i = 0; i < h; ++i) out[t * h + i] += static_cast<float>(open * y[i]);
  }
}

}  // namespace switchyard
