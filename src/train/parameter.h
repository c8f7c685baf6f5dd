// What is learned: named tensors in float32 with their gradients.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::train {

// One tensor of the model as this rank holds it. T is float when training and double where
// gradients are held against finite differences.
template <typename T>
struct Parameter {
  std::string name;            // as in the checkpoint: model.layers.1.mlp.experts.3.up_proj.weight
  std::vector<int64_t> shape;  // row-major, as in the checkpoint ([outputs, inputs] for matrices)
  std::vector<T> value;        // master weights
  // Of the sum that the step minimises, added to by every micro-batch; empty where the parameter is
  // not learned by gradients (selection biases).
  std::vector<T> gradient;
  // An expert's weights live on the ranks of its EP group alone: their gradients are complete
  // there, and are neither summed over the EP ranks nor counted twice in the global norm.
  bool expert = false;
  bool decay = true;  // weight decay: matrices yes, norms and biases no
};

}  // namespace switchyard::train
