// Working memory that the layers of one pass use in turn.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/check.h"
#include "model/layers/activations.h"

namespace switchyard {

// A layer takes its arrays during its call, always in the same order. So the addresses depend on
// the sizes only, as recorded passes require. The next layer overwrites the arrays.
class LayerScratch {
 public:
  LayerScratch(kernels::Device& device, int64_t floats) : memory_(device, floats) {}

  // Floats for arrays of these sizes, alignment included.
  static int64_t Floats(std::initializer_list<int64_t> counts) {
    int64_t sum = 0;
    for (const int64_t count : counts) sum += Aligned(count);
    return sum;
  }

  void Reset() { used_ = 0; }  // at the start of a layer's call
  float* Take(int64_t count) {
    float* array = memory_.data() + used_;
    used_ += Aligned(count);
    CHECK_LE(used_, memory_.size());
    return array;
  }
  int32_t* TakeInts(int64_t count) { return reinterpret_cast<int32_t*>(Take(count)); }

 private:
  static int64_t Aligned(int64_t count) {
    constexpr int64_t kFloats = 64;  // 256 bytes, as Device::Allocate
    return (count + kFloats - 1) / kFloats * kFloats;
  }

  Activations memory_;
  int64_t used_ = 0;
};

}  // namespace switchyard
