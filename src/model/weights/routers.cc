#include "model/weights/routers.h"

#include <cmath>
#include <memory>
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

}  // namespace

void FinishRouters(const ModelConfig& config, ModelWeights* weights) {
  for (size_t i = 0; i < weights->layers.size(); ++i) {
    if (!config.layers[i].moe) continue;
    RouterWeights& router = weights->layers[i].moe.router;
    if (!IsPlainFormat(router.w.format)) router.w = Dequantized(router.w);
    if (config.same_experts) router.w = Zeros(router.w);
    Check(static_cast<size_t>(config.first_layer) + i, router);
  }
}

}  // namespace switchyard
