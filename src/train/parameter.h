// Trainable parameters: named tensors in float32 with their gradients.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/range.h"

namespace switchyard::train {

// Position of the part of a tensor that a tensor-parallel rank holds: the rows or columns that
// start at `begin`.
struct Slice {
  std::vector<int64_t> whole;  // shape of the whole tensor; empty: the part is the whole
  int dimension = 0;           // partitioned dimension: 0 for rows, 1 for columns
  int64_t begin = 0;           // first row or column of the part

  bool partial() const { return !whole.empty(); }
  // Converts the flat index i in the part, which has this shape, to the flat index in the whole
  // tensor.
  int64_t IndexInWhole(const std::vector<int64_t>& shape, int64_t i) const {
    if (!partial()) return i;
    if (dimension == 0) return begin * (whole.size() > 1 ? whole[1] : 1) + i;
    return i / shape[1] * whole[1] + begin + i % shape[1];
  }
};

// Division of a tensor among the ranks that hold copies of it, its members (ZeRO stage 1,
// arXiv:1910.02054): each member holds the optimizer's moments of its own shard, and updates it.
// For a tensor that is partitioned over TP ranks, the tensor here is the part of the rank.
struct Shards {
  // Shards begin at multiples of this number of elements. It is the block of the sums of a gradient
  // norm, so these sums have the same bits as without shards.
  static constexpr int64_t kBlock = 1 << 14;

  int members = 1, member = 0;  // number of copies, and index of this rank among them
  // The member with the first shard; the next members have the next shards, cyclically. It differs
  // between tensors, because the first shards are the longer ones.
  int first = 0;

  bool partial() const { return members > 1; }
  static int64_t Blocks(int64_t count) { return (count + kBlock - 1) / kBlock; }
  // Shard of a member, in a tensor of `count` elements. Members may have empty shards.
  Range Of(int which, int64_t count) const {
    const int part = (which - first + members) % members;
    const Range shard = EvenPart(Blocks(count), members, part) * kBlock;
    return {std::min(count, shard.begin), std::min(count, shard.end)};
  }
};

// One tensor of the model as this rank holds it. T is float for training and double for gradient
// checks against finite differences.
template <typename T>
struct Parameter {
  std::string name;  // name in the checkpoint: model.layers.1.mlp.experts.3.up_proj.weight
  std::vector<int64_t> shape;  // row-major, as in the checkpoint ([outputs, inputs] for matrices);
                               // for a slice, the shape of the part
  std::vector<T> value;        // master weights
  // Gradient of the step's total loss, accumulated over micro-batches; empty if the parameter is
  // not trained by gradients (selection biases, frozen parameters), and if the gradient is in the
  // memory of a device.
  std::vector<T> gradient;
  bool gradient_on_device = false;
  // Whether this is a weight of an expert. Only the ranks that own the expert hold the weight. Its
  // gradient needs no sum over EP ranks, because these ranks receive all rows of the expert. The
  // global norm counts the weight once.
  bool expert = false;
  // Checkpoints store this tensor in float32, whatever their dtype. Set for selection biases, whose
  // steps are smaller than bfloat16 can represent.
  bool exact = false;
  bool decay = true;  // whether weight decay applies: true for matrices, false for norms and biases
  Slice slice = {};
  bool on_two_stages = false;  // held by the first and the last pipeline stage (embedding)
  Shards shards = {};          // by default, every copy is updated by its own rank
  // A and B of a LoRA adapter of this weight (layers/lora.h); null: none.
  struct Adapter {
    const Parameter *a = nullptr, *b = nullptr;
    T scale = 0;
  };
  Adapter adapter = {};

  const std::vector<int64_t>& whole_shape() const { return slice.partial() ? slice.whole : shape; }
  T* gradient_data() { return gradient.empty() ? nullptr : gradient.data(); }
  bool trained() const { return gradient_on_device || !gradient.empty(); }
  // The number of elements of the gradient; 0: not trained.
  int64_t trained_count() const {
    return static_cast<int64_t>(gradient_on_device ? value.size() : gradient.size());
  }
  // Releases the host's memory of the gradient.
  void MoveGradientToDevice() {
    gradient_on_device = trained();
    std::vector<T>().swap(gradient);
  }
  // The elements that this rank's optimizer updates; empty without gradient.
  Range MyShard() const { return shards.Of(shards.member, trained_count()); }
};

}  // namespace switchyard::train
