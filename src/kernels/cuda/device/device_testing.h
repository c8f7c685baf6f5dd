// Helpers of the tests that compare GPU ops with the CPU.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/cuda/runtime.h"
#include "kernels/device.h"
#include "kernels/testing.h"

namespace switchyard::kernels {

// A vector in device memory, with upload and download.
template <typename T>
class DeviceVector {
 public:
  DeviceVector(Device& device, const std::vector<T>& values)
      : device_(device), count_(values.size()), memory_(device.Allocate(count_ * sizeof(T))) {
    device.CopyIn(memory_.get(), values.data(), count_ * sizeof(T));
  }
  T* data() const { return static_cast<T*>(memory_.get()); }
  std::vector<T> Read() const {
    std::vector<T> values(count_);
    device_.CopyOut(values.data(), memory_.get(), count_ * sizeof(T));
    return values;
  }

 private:
  Device& device_;
  size_t count_;
  std::shared_ptr<void> memory_;
};
template <typename T>
DeviceVector(Device&, const std::vector<T>&) -> DeviceVector<T>;

// A GPU device of each dtype, and the CPU device as the reference. Skips without a GPU.
class DeviceTest : public ::testing::Test {
 protected:
  static constexpr int64_t kMaxTokens = 320, kMaxSequences = 16, kMaxPages = 64;

  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no GPU";
    exact_ = Make(DType::kF32);
    fast_ = Make(DType::kBF16);
    cpu_ = MakeCpuDevice(pool_);
  }
  static std::unique_ptr<Device> Make(DType dtype) {
    return MakeCudaDevice({.dtype = dtype,
                           .max_tokens = kMaxTokens,
                           .max_sequences = kMaxSequences,
                           .max_pages = kMaxPages});
  }

  ThreadPool pool_{2};
  Random random_{1};
  std::unique_ptr<Device> exact_, fast_, cpu_;
};

}  // namespace switchyard::kernels
