#include "model/weights/routers.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/hash.h"

namespace switchyard {
namespace {

bool IsPlainFormat(WeightFormat format) {
  return format == WeightFormat::kF32 || format == WeightFormat::kBF16 ||
         format == WeightFormat::kF16;
}

// A router of these weights. It has no activation format, because routers multiply unrounded rows.
WeightView Floats(const WeightView& w, const std::shared_ptr<const std::vector<float>>& values) {
  return {.format = WeightFormat::kF32,
          .data = values->data(),
          .stored_k = w.k,
          .n = w.n,
          .k = w.k,
          .owner = values};
}

WeightView Dequantized(const WeightView& w) {
  auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(w.n * w.k));
  for (int64_t row = 0; row < w.n; ++row) DequantizeRow(w, row, 0, w.k, &(*values)[row * w.k]);
  return Floats(w, values);
}

WeightView Zeros(const WeightView& w) {
  return Floats(w, std::make_shared<std::vector<float>>(static_cast<size_t>(w.n * w.k)));
}

bool AllFinite(const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (!std::isfinite(values[i])) return false;
  return true;
}

[[noreturn]] void Refuse(size_t layer, int64_t expert, const char* what) {
  throw Invalid(
      "layer {}: the router's {} of expert {} is not finite (NaN or infinity); the file is damaged",
      layer, what, expert);
}

void Check(size_t layer, const RouterWeights& router) {
  std::vector<float> row(static_cast<size_t>(router.w.k));
  for (int64_t expert = 0; expert < router.w.n; ++expert) {
    DequantizeRow(router.w, expert, 0, router.w.k, row.data());
    if (!AllFinite(row.data(), router.w.k)) Refuse(layer, expert, "weight");
    if (router.bias && !std::isfinite(router.bias[expert])) Refuse(layer, expert, "bias");
    if (router.correction_bias && !std::isfinite(router.correction_bias[expert]))
      Refuse(layer, expert, "correction bias");
  }
}

// Exchanges expect that the experts of a token differ.
void CheckTokenExperts(const RouterConfig& config, size_t layer, const RouterWeights& router) {
  for (int64_t token = 0; token < router.token_rows; ++token) {
    const std::span row(router.token_experts + token * config.top_k,
                        static_cast<size_t>(config.top_k));
    for (size_t i = 0; i < row.size(); ++i) {
      if (row[i] < 0 || row[i] >= config.num_experts)
        throw Invalid("layer {}: the router's table has expert {} for token {}; want 0 to {}",
                      layer, row[i], token, config.num_experts - 1);
      if (std::ranges::count(row.first(i), row[i]) > 0)
        throw Invalid("layer {}: the router's table has expert {} twice for token {}", layer,
                      row[i], token);
    }
  }
}

// [rows, top_k] the experts of each token id (SkewRouting). Draws without replacement are the
// experts with the smallest exponential variables of their weights' rates (Efraimidis and Spirakis,
// "Weighted random sampling with a reservoir", 2006).
Tensor DrawTokenExperts(const RouterConfig& config, double exponent, size_t layer, int64_t rows) {
  const auto experts = static_cast<size_t>(config.num_experts);
  std::vector<double> inverse(experts), time(experts);
  for (size_t e = 0; e < experts; ++e) inverse[e] = std::pow(static_cast<double>(e) + 1, exponent);
  Tensor table = Tensor::Empty(DType::kI32, {rows, config.top_k});
  auto* out = table.data<int32_t>();
  std::vector<int32_t> order(experts);
  uint64_t state = MixBits(layer + 1);
  for (int64_t row = 0; row < rows; ++row, out += config.top_k) {
    for (size_t e = 0; e < experts; ++e) {
      state += kSplitMixStep;
      // in (0, 1], so that the logarithm is finite
      const double uniform = (static_cast<double>(MixBits(state) >> 11) + 1) * 0x1p-53;
      time[e] = -std::log(uniform) * inverse[e];
    }
    std::iota(order.begin(), order.end(), 0);
    std::ranges::partial_sort(order, order.begin() + config.top_k, {},
                              [&](int32_t e) { return time[static_cast<size_t>(e)]; });
    std::copy_n(order.begin(), config.top_k, out);
  }
  return table;
}

// Replaces the choice of a router by experts that follow from token ids.
void DrawExperts(const ModelConfig& config, size_t number, LayerWeights* layer) {
  RouterWeights& router = layer->moe.router;
  if (router.w.n == 0) return;  // a rank with experts only
  const int64_t rows = std::min<int64_t>(kSkewedTokens, config.vocab_size);
  layer->owned.push_back(DrawTokenExperts(config.moe->router, *config.expert_skew, number, rows));
  router.token_experts = std::as_const(layer->owned.back()).data<int32_t>();
  router.token_rows = rows;
  router.correction_bias = nullptr;
}

}  // namespace

void SkewRouting(double exponent, ModelConfig* config) {
  if (!config->has_moe()) throw Invalid("--expert-skew {}: the model has no experts", exponent);
  if (config->moe->router.zero_experts > 0)
    throw Invalid("--expert-skew {}: not supported for {}, which has experts without computation",
                  exponent, config->architecture);
  if (config->moe->latent > 0)
    throw Invalid("--expert-skew {}: not supported for {}, whose experts have narrower rows",
                  exponent, config->architecture);
  RouterConfig& router = config->moe->router;
  router.scoring = RouterConfig::Scoring::kSqrtSoftplus;  // the only one with experts by token id
  router.num_groups = router.topk_groups = 1;
  for (LayerConfig& layer : config->layers) layer.by_token = layer.moe;
  config->expert_skew = exponent;
}

void FinishRouters(const ModelConfig& config, ModelWeights* weights) {
  for (size_t i = 0; i < weights->layers.size(); ++i) {
    if (!config.layers[i].moe) continue;
    RouterWeights& router = weights->layers[i].moe.router;
    if (!IsPlainFormat(router.w.format)) router.w = Dequantized(router.w);
    if (config.same_experts) router.w = Zeros(router.w);
    const size_t number = static_cast<size_t>(config.first_layer) + i;
    if (config.expert_skew) DrawExperts(config, number, &weights->layers[i]);
    Check(number, router);
    if (config.layers[i].by_token) CheckTokenExperts(config.moe->router, number, router);
  }
}

}  // namespace switchyard
