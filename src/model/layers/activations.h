// Device memory of activations.
#pragma once

#include <memory>

#include "kernels/device.h"

namespace switchyard {

// A float buffer on a device; its shape is in the owner's comment.
class Activations {
 public:
  Activations() = default;
  Activations(kernels::Device& device, int64_t count) { Reserve(device, count); }

  // Ensures capacity for `count` floats. Returns true if it reallocated: contents are lost and the
  // address changed.
  bool Reserve(kernels::Device& device, int64_t count) {
    if (count <= count_) return false;
    // Freeing waits for the GPU, without a deadline.
    if (memory_) device.Synchronize();
    memory_ = nullptr;  // frees the old buffer before the allocation
    memory_ = device.Allocate(count * sizeof(float));
    count_ = count;
    return true;
  }

  float* data() { return static_cast<float*>(memory_.get()); }
  const float* data() const { return static_cast<const float*>(memory_.get()); }
  int64_t size() const { return count_; }

 private:
  std::shared_ptr<void> memory_;
  int64_t count_ = 0;
};

}  // namespace switchyard
