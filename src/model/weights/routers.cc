#include "model/weights/routers.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "core/error.h"

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

}  // namespace

void FinishRouters(const ModelConfig& config, ModelWeights* weights) {
  for (size_t i = 0; i < weights->layers.size(); ++i) {
    if (!config.layers[i].moe) continue;
    RouterWeights& router = weights->layers[i].moe.router;
    if (!IsPlainFormat(router.w.format)) router.w = Dequantized(router.w);
    if (config.same_experts) router.w = Zeros(router.w);
    const size_t number = static_cast<size_t>(config.first_layer) + i;
    Check(number, router);
    if (config.layers[i].by_token) CheckTokenExperts(config.moe->router, number, router);
  }
}

}  // namespace switchyard
