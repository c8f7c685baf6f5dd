// Linear layers on a device, and what all layers there share.
#pragma once

#include <cstdint>

#include "train/device/memory.h"
#include "train/device/ops.h"
#include "train/device/parameters.h"

namespace switchyard::train {

// What the layers of a model on a device use. Borrowed by all layers.
template <typename C>
struct DeviceContext {
  TrainOps<C>& ops;
  DeviceMemory& memory;
  DeviceParameters<C>& parameters;

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
    return {.rows = rows, .n = n, .k = k, .groups = groups, .offsets = offsets};
  }
  // y [rows, n]
  DeviceArray<C> Forward(const DeviceContext<C>& on, int64_t rows, const C* x,
                         const int32_t* offsets = nullptr) const {
    auto y = on.template Array<C>(rows * n);
    on.ops.Project(Shape(rows, offsets), x, on.parameters.copy(*weight), y.data());
    return y;
  }
  void ForwardSum(const DeviceContext<C>& on, int64_t rows, const C* x, float* y,
                  bool accumulate) const {
    on.ops.ProjectSum(Shape(rows, nullptr), x, on.parameters.copy(*weight), y, accumulate);
  }
  // Adds to the gradient of the weight. Returns dx [rows, k].
  DeviceArray<C> Backward(const DeviceContext<C>& on, int64_t rows, const C* x, const C* dy,
                          const int32_t* offsets = nullptr) const {
    const LinearShape shape = Shape(rows, offsets);
    on.ops.WeightGradient(shape, dy, x, on.parameters.gradient(*weight));
    auto dx = on.template Array<C>(rows * k);
    on.ops.InputGradient(shape, dy, on.parameters.copy(*weight), dx.data());
    return dx;
  }
  // The same, with dx in float32.
  void BackwardSum(const DeviceContext<C>& on, int64_t rows, const C* x, const C* dy, float* dx,
                   bool accumulate, const int32_t* offsets = nullptr) const {
    const LinearShape shape = Shape(rows, offsets);
    on.ops.WeightGradient(shape, dy, x, on.parameters.gradient(*weight));
    on.ops.InputGradientSum(shape, dy, on.parameters.copy(*weight), dx, accumulate);
  }
};

}  // namespace switchyard::train
