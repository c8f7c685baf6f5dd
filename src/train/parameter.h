// Trainable parameters: named tensors in float32 with their gradients.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::train {

// Position of a part within the whole tensor: rows or columns from `begin` on. Tensor-parallel
// ranks hold such parts.
struct Slice {
  std::vector<int64_t> whole;  // shape of the whole tensor; empty: the part is the whole
  int dimension = 0;           // partitioned dimension: 0, rows, or 1, columns
  int64_t begin = 0;           // offset along it

  bool partial() const { return !whole.empty(); }
  // The flat index in the whole tensor of element i of a part of this shape.
  int64_t IndexInWhole(const std::vector<int64_t>& shape, int64_t i) const {
    if (!partial()) return i;
    if (dimension == 0) return begin * (whole.size() > 1 ? whole[1] : 1) + i;
    return i / shape[1] * whole[1] + begin + i % shape[1];
  }
};

// One tensor of the model as this rank holds it. T is float for training and double for gradient
// checks against finite differences.
template <typename T>
struct Parameter {
  std::string name;            // as in the checkpoint: model.layers.1.mlp.experts.3.up_proj.weight
  std::vector<int64_t> shape;  // row-major, as in the checkpoint ([outputs, inputs] for matrices);
                               // for a slice, the shape of the part
  std::vector<T> value;        // master weights
  // Gradient of the step's total loss, accumulated over micro-batches; empty if the parameter is
  // not trained by gradients (selection biases, frozen parameters).
  std::vector<T> gradient;
  // Whether this is a weight of an expert. Only the EP ranks that own the expert hold it. Its
  // gradient is complete on these ranks: EP ranks do not sum it, and the global norm counts it
  // once.
  bool expert = false;
  // Checkpoints store it in float32, whatever the dtype of their weights: selection biases, which
  // move by less than bfloat16 resolves.
  bool exact = false;
  bool decay = true;  // weight decay: matrices yes, norms and biases no
  Slice slice = {};
  bool on_two_stages = false;  // held by the first and the last pipeline stage (embedding)

  const std::vector<int64_t>& whole_shape() const { return slice.partial() ? slice.whole : shape; }
};

}  // namespace switchyard::train
