#include "moe/reference.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "quant/activations.h"

namespace switchyard {
namespace {

using Row = std::vector<float>;

Row Product(const WeightView& w, std::span<const float> input, const float* bias) {
  Row x(input.begin(), input.end()), y(w.n), row(w.k);
  RoundActivations(w.activation, w.input_scale, x.data(), w.k, x.data());
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
    if (config.activation == kernels::Activation::kRelu2) {
      middle[i] = u < 0.0 ? 0.0f : static_cast<float>(u * u);
      continue;
    }
    if (config.activation != kernels::Activation::kSwiGlu) {
      const double limit = config.swiglu_limit;
      g = std::min(g, limit);
      u = std::clamp(u, -limit, limit);
    }
    if (config.activation == kernels::Activation::kSwiGluClamped) {
      u += 1.0;
      slope = config.swiglu_alpha;
    }
    middle[i] = static_cast<float>(g * Sigmoid(slope * g) * u);
  }
  return Product(w.down, middle, w.down_bias);
}

Row Rounded(RowFormat format, std::span<const float> x) {
  const auto n = static_cast<int64_t>(x.size());
  std::vector<std::byte> stored(format.Bytes(n));
  Row y(x.size());
  StoreRow(format, x.data(), n, stored.data());
  LoadRow(format, stored.data(), n, y.data());
  return y;
}

// The output of an expert for a dispatched row, rounded as it is sent.
Row ExpertOutput(const MoeLayerConfig& config, const kernels::ExpertWeights& w, RowFormat format,
                 std::span<const float> x) {
  return Rounded({format.dtype, false}, Expert(config, w, Rounded(format, x)));
}

}  // namespace

void RoutedReference(const MoeLayerConfig& config, const MoeLayerWeights& weights, RowFormat format,
                     const float* hidden, const TopK& topk, float* out) {
  const int64_t h = config.hidden;
  for (int64_t t = 0; t < topk.tokens; ++t) {
    const std::span x(hidden + t * h, h);
    std::vector<double> sum(h, 0.0);
    for (int j = 0; j < topk.k; ++j) {
      const int32_t expert = topk.ids[t * topk.k + j];
      if (expert < 0) continue;
      const float weight = topk.weights[t * topk.k + j];
      if (expert >= config.router.num_experts) {  // without computation
        for (int64_t i = 0; i < h; ++i) sum[i] += double{weight} * x[i];
        continue;
      }
      Row scaled(x.begin(), x.end());
      if (config.router.scales_input)
        for (float& element : scaled) element *= weight;
      const Row y = ExpertOutput(config, weights.experts[expert], format, scaled);
      const double factor = config.router.scales_input ? 1.0 : weight;
      for (int64_t i = 0; i < h; ++i) sum[i] += factor * y[i];
    }
    std::ranges::copy(sum, out + t * h);
  }
}

void MoeReference(const MoeLayerConfig& config, const MoeLayerWeights& weights, RowFormat format,
                  const float* hidden, int64_t tokens, float* out, bool shared_dispatched,
                  const float* router_rows) {
  const int64_t h = config.hidden;
  const auto token = [&](int64_t t) { return std::span(hidden + t * h, h); };

  std::vector<float> logits;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t width = config.router_width;
    const auto read = router_rows ? std::span(router_rows + t * width, width) : token(t);
    const Row row = Product(weights.router.w, read, weights.router.bias);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  ThreadPool one_thread(1);
  TopK topk;
  if (config.router.by_token) {
    LookUpExperts(config.router, weights.router, logits.data(), tokens,
                  router_rows + config.router_width - 1, config.router_width, &topk, one_thread);
  } else {
    SelectExperts(config.router, logits.data(), tokens, weights.router.correction_bias, &topk,
                  one_thread);
  }
  RoutedReference(config, weights, format, hidden, topk, out);

  if (!weights.has_shared) return;
  for (int64_t t = 0; t < tokens; ++t) {
    const Row y = shared_dispatched ? ExpertOutput(config, weights.shared, format, token(t))
                                    : Expert(config, weights.shared, token(t));
    const double open = weights.shared_gate.defined()
                            ? Sigmoid(Product(weights.shared_gate, token(t), nullptr)[0])
                            : 1.0;
    for (int64_t i = 0; i < h; ++i) out[t * h + i] += static_cast<float>(open * y[i]);
  }
}

}  // namespace switchyard
