// Linear layers on a device, and what all layers there share.
#pragma once

#include <cstdint>

#include "core/range.h"
#include "train/device/memory.h"
#include "train/device/ops.h"
#include "train/device/parameters.h"
#include "train/device/ranks.h"

namespace switchyard::train {

struct DeviceOptions {
  // Whether the products of attention and feed-forward layers are FP8 (LinearShape::fp8), except
  // those of routers and the first one of latent attention's keys. Then rows on their way to
  // experts are FP8, too.
  bool fp8 = false;
};

// What the layers of a model on a device use. Borrowed by all layers.
template <typename C>
struct DeviceContext {
  TrainOps<C>& ops;
  DeviceRanks& ranks;
  DeviceMemory& memory;
  DeviceParameters<C>& parameters;
  DeviceOptions options = {};

  // The argument of DeviceParameters::Place for `groups` linear layers of attention or feed-forward
  // layers.
  int64_t Fp8Groups(int64_t groups) const { return options.fp8 ? groups : 0; }
  template <typename E>
  DeviceArray<E> Array(int64_t size) const {
    return DeviceArray<E>(memory, size);
  }
};

// A linear layer, or the equal layers of all experts, whose rows `offsets` separate
// (LinearShape::offsets).
template <typename C>
struct DeviceLinear {
  const Slab* weight = nullptr;  // [groups, n, k]
  int64_t n = 0, k = 0, groups = 1;

  LinearShape Shape(int64_t rows, const int32_t* offsets) const {
    return {.rows = rows,
            .n = n,
            .k = k,
            .groups = groups,
            .offsets = offsets,
            .fp8 = DeviceParameters<C>::fp8(*weight)};
  }
  // y [rows, n]
  DeviceArray<C> Forward(const DeviceContext<C>& on, int64_t rows, const C* x,
                         const int32_t* offsets = nullptr) const {
    auto y = on.template Array<C>(rows * n);
    on.ops.Project(Shape(rows, offsets), x, on.parameters.copy(*weight), y.data());
    return y;
  }
  // The same for rows `part` of x [m, k]. The first part allocates y [m, n].
  void ForwardPart(const DeviceContext<C>& on, const Range& part, int64_t m, const C* x,
                   DeviceArray<C>* y) const {
    if (part.begin == 0) *y = on.template Array<C>(m * n);
    on.ops.Project(Shape(part.size(), nullptr), x + part.begin * k, on.parameters.copy(*weight),
                   y->data() + part.begin * n);
  }
  void ForwardSum(const DeviceContext<C>& on, int64_t rows, const C* x, float* y,
                  bool accumulate) const {
    on.ops.ProjectSum(Shape(rows, nullptr), x, on.parameters.copy(*weight), y, accumulate);
  }
  // Adds to the gradient of the weight.
  void WeightGradient(const DeviceContext<C>& on, int64_t rows, const C* x, const C* dy,
                      const int32_t* offsets = nullptr) const {
    on.ops.WeightGradient(Shape(rows, offsets), dy, x, on.parameters.gradient(*weight));
  }
  // dx [rows, k]
  DeviceArray<C> InputGradient(const DeviceContext<C>& on, int64_t rows, const C* dy,
                               const int32_t* offsets = nullptr) const {
    auto dx = on.template Array<C>(rows * k);
    on.ops.InputGradient(Shape(rows, offsets), dy, on.parameters.copy(*weight), dx.data());
    return dx;
  }
  void InputGradientSum(const DeviceContext<C>& on, int64_t rows, const C* dy, float* dx,
                        bool accumulate, const int32_t* offsets = nullptr) const {
    on.ops.InputGradientSum(Shape(rows, offsets), dy, on.parameters.copy(*weight), dx, accumulate);
  }
  // Both gradients.
  DeviceArray<C> Backward(const DeviceContext<C>& on, int64_t rows, const C* x, const C* dy) const {
    WeightGradient(on, rows, x, dy);
    return InputGradient(on, rows, dy);
  }
  void BackwardSum(const DeviceContext<C>& on, int64_t rows, const C* x, const C* dy, float* dx,
                   bool accumulate) const {
    WeightGradient(on, rows, x, dy);
    InputGradientSum(on, rows, dy, dx, accumulate);
  }
};

}  // namespace switchyard::train
