// LoRA: low-rank adapters of frozen linear layers (Hu et al., arXiv:2106.09685).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "train/parameter.h"

namespace switchyard::train {

// With adapters, a linear layer computes y = x · Wᵀ + alpha / rank · (x · Aᵀ) · Bᵀ. Only A and B
// are trained: A [rank, inputs], B [outputs, rank]. All other parameters are frozen.
struct LoraOptions {
  int64_t rank = 0;  // 0: no adapters, and all parameters are trained
  double alpha = 0;
  std::vector<std::string> targets;  // last parts of the layers' names: "q_proj", "up_proj"

  double scale() const { return alpha / static_cast<double>(rank); }
  // Whether the linear layer with this name ("model.layers.0.self_attn.q_proj") has an adapter.
  bool Adapts(std::string_view name) const;
};

// Last parts of the names of all linear layers that can have an adapter: those of attention, dense
// layers, and experts.
std::vector<std::string> LoraTargets(const ModelConfig& config);

// Names of A and B are those of PEFT: the name of the layer and ".lora_A.weight".
bool IsAdapter(std::string_view tensor);

// W + alpha / rank · B · A of this rank's part of W; the value itself if it has no adapter.
template <typename T>
std::vector<T> MergedValue(const Parameter<T>& weight);

}  // namespace switchyard::train
