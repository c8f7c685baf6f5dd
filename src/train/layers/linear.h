// Linear layers, and the set that owns the parameters of a model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "moe/types.h"
#include "train/layers/lora.h"
#include "train/layers/tensor_group.h"
#include "train/math/product.h"
#include "train/math/workspace.h"
#include "train/parameter.h"

namespace switchyard::train {

// The part of a tensor that a rank holds. `dimension`: 0 for a range of rows, 1 for a range of
// columns, -1 for the whole tensor.
struct Cut {
  int dimension = -1;
  Range range;

  // This rank's share of `n` blocks. A block has `unit` outputs (or inputs).
  static Cut Outputs(const TensorGroup& ranks, int64_t n, int64_t unit = 1) {
    return {0, Blocks(ranks, n, unit)};
  }
  static Cut Inputs(const TensorGroup& ranks, int64_t n, int64_t unit = 1) {
    return {1, Blocks(ranks, n, unit)};
  }

  static Range Blocks(const TensorGroup& ranks, int64_t n, int64_t unit) {
    const Range mine = ranks.Mine(n);
    return {mine.begin * unit, mine.end * unit};
  }
};

// Owns the parameters of a model, in the order of the model. Pointers to parameters stay valid when
// more are added.
template <typename T>
class ParameterSet {
 public:
  explicit ParameterSet(ProductDtype products = ProductDtype::kFloat32, LoraOptions lora = {})
      : products_(products), lora_(std::move(lora)) {}
  // Adds a parameter with zero value and gradient. Vectors have no weight decay. Only this rank's
  // `part` of `shape` is allocated.
  Parameter<T>* Add(std::string name, std::vector<int64_t> shape, bool expert = false,
                    const Cut& part = {}) {
    Parameter<T>& p = all_.emplace_back();
    p.name = std::move(name);
    p.decay = shape.size() > 1;
    if (part.dimension >= 0 && part.range.size() < shape[part.dimension]) {
      p.slice = {.whole = shape, .dimension = part.dimension, .begin = part.range.begin};
      shape[part.dimension] = part.range.size();
    }
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    p.shape = std::move(shape);
    p.value.resize(count);
    p.gradient.resize(count);
    p.expert = expert;
    return &p;
  }
  std::deque<Parameter<T>>& all() { return all_; }
  // Dtype of the products of linear layers made from this set, and their adapters.
  ProductDtype products() const { return products_; }
  const LoraOptions& lora() const { return lora_; }

 private:
  const ProductDtype products_;
  const LoraOptions lora_;
  std::deque<Parameter<T>> all_;
};

// y = x · Wᵀ. n and k are the dimensions of this rank's part.
template <typename T>
struct Linear {
  Parameter<T>* weight = nullptr;  // [n, k]
  int64_t n = 0, k = 0;
  // Dtype of the forward product and of both gradient products.
  ProductDtype dtype = ProductDtype::kFloat32;
  // LoRA: a [rank, k], b [n, rank]; null: no adapter. A matrix that is partitioned by outputs has a
  // whole `a` on each rank, one that is partitioned by inputs a whole `b`.
  Parameter<T>*a = nullptr, *b = nullptr;
  T scale = 0;
  bool frozen = false;  // a layer of a model with adapters

  // n, k: dimensions of the whole tensor. Adds an adapter if the set's LoraOptions name the layer.
  static Linear Make(ParameterSet<T>& set, const std::string& name, int64_t n, int64_t k,
                     bool expert = false, const Cut& part = {}) {
    Linear linear = Of(set.Add(name + ".weight", {n, k}, expert, part), set.products());
    const LoraOptions& lora = set.lora();
    linear.frozen = lora.rank > 0;
    if (!lora.Adapts(name)) return linear;
    const bool by_outputs = part.dimension == 0;
    linear.a = set.Add(name + ".lora_A.weight", {lora.rank, k}, expert, by_outputs ? Cut{} : part);
    linear.b = set.Add(name + ".lora_B.weight", {n, lora.rank}, expert, by_outputs ? part : Cut{});
    linear.scale = static_cast<T>(lora.scale());
    linear.weight->adapter = {linear.a, linear.b, linear.scale};
    return linear;
  }
  static Linear Of(Parameter<T>* weight, ProductDtype dtype) {
    return {.weight = weight, .n = weight->shape[0], .k = weight->shape[1], .dtype = dtype};
  }
  int64_t rank() const { return a->shape[0]; }
  Projection<T> Forward(const T* x, int64_t m, T* y) const {
    return {.x = x, .w = weight->value.data(), .y = y, .m = m, .n = n, .k = k, .dtype = dtype};
  }
  Product<T> ForInput(const T* dy, int64_t m, T* dx, bool accumulate) const {
    return Typed(InputGradient(dy, weight->value.data(), dx, m, n, k, accumulate));
  }
  Product<T> ForWeight(const T* dy, const T* x, int64_t m) const {
    return Typed(WeightGradient(dy, x, weight->gradient.data(), m, n, k));
  }
  bool learns() const { return !weight->gradient.empty(); }  // whether it needs ForWeight
  Product<T> Typed(Product<T> product) const {
    product.dtype = dtype;
    return product;
  }
};

// One of several linear layers that have the same input x. BackwardAll sums the gradients of x over
// these layers, in order.
template <typename T>
struct LinearUse {
  const Linear<T>* linear;
  T* y;  // forward: output; backward: dy
};

// out [m, rank] = scale · x · Aᵀ, of a layer with an adapter.
template <typename T>
void ProjectDown(const Linear<T>& linear, const T* x, int64_t m, T* out, ThreadPool& pool) {
  const Projection<T> down = {.x = x,
                              .w = linear.a->value.data(),
                              .y = out,
                              .m = m,
                              .n = linear.rank(),
                              .k = linear.k,
                              .dtype = linear.dtype};
  Project<T>({&down, 1}, pool);
  for (int64_t i = 0; i < m * linear.rank(); ++i) out[i] *= linear.scale;
}

// Adds the adapter's output to y; nothing without an adapter.
template <typename T>
void ForwardAdapter(const Linear<T>& linear, const T* x, int64_t m, T* y, ThreadPool& pool) {
  if (linear.a == nullptr || m == 0) return;
  ScratchBuffer<T> low(m * linear.rank());
  ProjectDown(linear, x, m, low.data(), pool);
  const Product<T> up = {.a = low.data(),
                         .a_row = linear.rank(),
                         .b = linear.b->value.data(),
                         .b_row = 1,
                         .b_col = linear.rank(),
                         .c = y,
                         .ldc = linear.n,
                         .m = m,
                         .n = linear.n,
                         .k = linear.rank(),
                         .accumulate = true,
                         .dtype = linear.dtype};
  Multiply<T>({&up, 1}, pool);
}

template <typename T>
void ForwardAll(std::span<const LinearUse<T>> uses, const T* x, int64_t m, ThreadPool& pool) {
  std::vector<Projection<T>> parts;
  for (const auto& [linear, y] : uses) parts.push_back(linear->Forward(x, m, y));
  Project<T>(parts, pool);
  for (const auto& [linear, y] : uses) ForwardAdapter(*linear, x, m, y, pool);
}

// Weight gradients of a layer that are computed after its backward pass, and the buffers of their
// operands. All products of one object have the same dtype and different weights. Used by the
// rank's thread only.
template <typename T>
class LaterWeights {
 public:
  void Add(const Product<T>& product) { products_.push_back(product); }
  // A buffer of `count` elements, valid until Run.
  T* Hold(int64_t count) {
    held_count_ += count;
    return held_.emplace_back(std::make_unique<ScratchBuffer<T>>(count))->data();
  }
  // A copy of `count` elements, valid until Run.
  const T* HoldCopy(const T* values, int64_t count) {
    T* copy = Hold(count);
    std::copy_n(values, count, copy);
    return copy;
  }
  void Run(ThreadPool& pool) {
    Multiply<T>(products_, pool);
    products_.clear();
    held_.clear();
    held_count_ = 0;
  }
  int64_t held_count() const { return held_count_; }  // elements of all buffers

 private:
  std::vector<Product<T>> products_;
  std::vector<std::unique_ptr<ScratchBuffer<T>>> held_;
  int64_t held_count_ = 0;
};

// The gradient of a linear layer's output. Its buffer lives as long as this object, or with `later`
// until the weight gradients have been computed.
template <typename T>
class OutputGradient {
 public:
  OutputGradient(int64_t count, LaterWeights<T>* later)
      : data_(later != nullptr ? later->Hold(count) : own_.emplace(count).data()) {}
  T* data() { return data_; }
  const T* data() const { return data_; }

 private:
  std::optional<ScratchBuffer<T>> own_;  // initialized before data_
  T* const data_;
};

// Adds the gradients through the adapter: to dx, and to the gradients of A and B, now or later;
// nothing without an adapter.
template <typename T>
void BackwardAdapter(const Linear<T>& linear, const T* dy, const T* x, int64_t m, T* dx,
                     ThreadPool& pool, LaterWeights<T>* later) {
  if (linear.a == nullptr || m == 0) return;
  const int64_t rank = linear.rank();
  OutputGradient<T> low(m * rank, later), dlow(m * rank, later);
  ProjectDown(linear, x, m, low.data(), pool);
  const Product<T> down = linear.Typed(
      InputGradient<T>(dy, linear.b->value.data(), dlow.data(), m, linear.n, rank, false));
  Multiply<T>({&down, 1}, pool);
  for (int64_t i = 0; i < m * rank; ++i) dlow.data()[i] *= linear.scale;
  const Product<T> weights[] = {
      linear.Typed(WeightGradient<T>(dy, low.data(), linear.b->gradient.data(), m, linear.n, rank)),
      linear.Typed(
          WeightGradient<T>(dlow.data(), x, linear.a->gradient.data(), m, rank, linear.k))};
  if (later == nullptr) Multiply<T>(weights, pool);
  for (const Product<T>& product : weights)
    if (later != nullptr) later->Add(product);
  const Product<T> up = linear.Typed(
      InputGradient<T>(dlow.data(), linear.a->value.data(), dx, m, rank, linear.k, true));
  Multiply<T>({&up, 1}, pool);
}

// Computes dx: adds to dx if `accumulate`, else overwrites it. Adds to the gradients of the
// weights, now or later. Then x and dy must stay as they are until then.
template <typename T>
void BackwardAll(std::span<const LinearUse<T>> uses, const T* x, int64_t m, T* dx, bool accumulate,
                 ThreadPool& pool, LaterWeights<T>* later = nullptr) {
  std::vector<Product<T>> products;
  for (const auto& [linear, dy] : uses) {
    if (!linear->learns()) continue;
    const Product<T> product = linear->ForWeight(dy, x, m);
    later != nullptr ? later->Add(product) : products.push_back(product);
  }
  Multiply<T>(products, pool);
  for (const auto& [linear, dy] : uses) {
    const Product<T> product = linear->ForInput(dy, m, dx, accumulate);
    Multiply<T>({&product, 1}, pool);
    BackwardAdapter<T>(*linear, dy, x, m, dx, pool, later);
    accumulate = true;
  }
}

}  // namespace switchyard::train
