// What all layers of a rank share.
#pragma once

#include "comm/device/collectives.h"
#include "comm/mesh.h"
#include "core/tensor.h"
#include "kernels/device.h"
#include "model/config.h"
#include "model/stage_rows.h"

namespace switchyard {

// Constant while the model lives. Layers borrow it.
struct LayerContext {
  const ModelConfig& config;
  const Mesh& mesh;
  const Tensor& cos_sin;  // [context_length, rotary_dim] of ModelConfig::rope; may be undefined
  const RankGroups& groups;
  kernels::Device& device;
  Tensor query_scale = {};          // [context_length, QueryScaleWidth], or undefined
  Tensor window_cos_sin = {};       // of ModelConfig::window_rope, or undefined
  StageRows* stage_rows = nullptr;  // null: there is one stage

  const Tensor& cos_sin_of(int64_t layer) const {
    return config.uses_window_rope(layer) ? window_cos_sin : cos_sin;
  }
};

// The elements of a float32 tensor; null if it is undefined.
inline const float* DataOf(const Tensor& t) { return t.defined() ? t.data<float>() : nullptr; }

// Copies a table to the device's memory. The result of an undefined table is undefined.
inline Tensor PlaceTable(kernels::Device& device, const Tensor& table) {
  return table.defined() ? device.Place(table) : table;
}

}  // namespace switchyard
