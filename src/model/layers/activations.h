// Memory for what layers compute.
#pragma once

#include <memory>

#include "kernels/device.h"

namespace switchyard {

// Floats of a device with a shape in the owner's comment: all that an activation needs to be. Those
// of one kind of layer are sized once for the largest pass and used by one layer after the other.
class Activations {
 public:
  Activations() = default;
  Activations(kernels::Device& device, int64_t count) { Reserve(device, count); }

  // At least `count` floats. True where it had to grow: what was there is gone, and it lies
  // elsewhere.
  bool Reserve(kernels::Device& device, int64_t count) {
    if (count <= count_) return false;
    memory_ = nullptr;  // before the new one
    memory_ = device.Allocate(count * sizeof(float));
    count_ = count;
    return true;
  }

  float* data() { return static_cast<float*>(memory_.get()); }
  const float* data() const { return static_cast<const float*>(memory_.get()); }
  int64_t size() const { return count_; }
  bool empty() const { return count_ == 0; }

 private:
  std::shared_ptr<void> memory_;
  int64_t count_ = 0;
};

}  // namespace switchyard
