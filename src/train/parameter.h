// What is learned: named tensors in float32 with their gradients.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::train {

// Where a part of a tensor lies in the whole: rows or columns from `begin` on. Tensor-parallel
// ranks hold such parts.
struct Slice {
  std::vector<int64_t> whole;  // shape of the whole tensor; empty: the part is the whole
  int dimension = 0;           // along which it is cut: 0, rows, or 1, columns
  int64_t begin = 0;           // there

  bool partial() const { return !whole.empty(); }
  // The place in the whole of element i of a part of this shape.
  int64_t IndexInWhole(const std::vector<int64_t>& shape, int64_t i) const {
    if (!partial()) return i;
    if (dimension == 0) return begin * (whole.size() > 1 ? whole[1] : 1) + i;
    return i / shape[1] * whole[1] + begin + i % shape[1];
  }
};

// One tensor of the model as this rank holds it. T is float when training and double where
// gradients are held against finite differences.
template <typename T>
struct Parameter {
  std::string name;            // as in the checkpoint: model.layers.1.mlp.experts.3.up_proj.weight
  std::vector<int64_t> shape;  // row-major, as in the checkpoint ([outputs, inputs] for matrices);
                               // of a slice its own
  std::vector<T> value;        // master weights
  // Of the sum that the step minimises, added to by every micro-batch; empty where the parameter is
  // not learned by gradients (selection biases).
  std::vector<T> gradient;
  // An expert's weights live on the ranks of its EP group alone: their gradients are complete
  // there, and are neither summed over the EP ranks nor counted twice in the global norm.
  bool expert = false;
  bool decay = true;  // weight decay: matrices yes, norms and biases no
  Slice slice = {};
  bool two_stages = false;  // the first pipeline stage holds it and the last (embedding)

  const std::vector<int64_t>& whole_shape() const { return slice.partial() ? slice.whole : shape; }
};

}  // namespace switchyard::train
