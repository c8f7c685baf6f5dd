// A batch's arrays in device memory.
#pragma once

#include <algorithm>
#include <memory>

#include "kernels/device.h"
#include "model/layers/context.h"

namespace switchyard {

// Allocated once, at a stable address, so that a recorded pass reads the next batch from there.
class PassArrays {
 public:
  PassArrays(kernels::Device& device, int64_t max_tokens)
      : capacity_(std::max<int64_t>(1, max_tokens)),
        memory_(device.Allocate(kArrays * capacity_ * sizeof(int32_t))) {}

  PassRows Set(kernels::Device& device, const ForwardBatch& batch) {
    return {.tokens = batch.num_tokens(),
            .ids = Copy(device, 0, batch.tokens),
            .positions = Copy(device, 1, batch.positions),
            .slots = Copy(device, 2, batch.slots),
            .logit_rows = static_cast<int64_t>(batch.logit_rows.size()),
            .logit_row = Copy(device, 3, batch.logit_rows)};
  }

 private:
  static constexpr int64_t kArrays = 4;

  const int32_t* Copy(kernels::Device& device, int64_t index, const std::vector<int32_t>& values) {
    int32_t* array = static_cast<int32_t*>(memory_.get()) + index * capacity_;
    if (!values.empty()) device.CopyIn(array, values.data(), values.size() * sizeof(int32_t));
    return array;
  }

  const int64_t capacity_;
  const std::shared_ptr<void> memory_;
};

}  // namespace switchyard
