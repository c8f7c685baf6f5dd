// Helpers of the tests that compare the training kernels with the CPU in float64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/cuda/runtime.h"
#include "core/dtype.h"
#include "train/cuda/array.h"

namespace switchyard::train::gpu {

class TrainCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no GPU";
  }
  std::mt19937 random_{1};
};

template <typename T>
cuda::DeviceMemory Upload(const std::vector<T>& values) {
  cuda::DeviceMemory memory(std::max<size_t>(values.size(), 1) * sizeof(T));
  cuda::CopyToDevice(memory.data(), values.data(), values.size() * sizeof(T), "upload");
  return memory;
}
template <typename T>
std::vector<T> Download(const cuda::DeviceMemory& memory, size_t count) {
  std::vector<T> values(count);
  cuda::Check(cudaDeviceSynchronize(), "kernels");
  cuda::Check(cudaMemcpy(values.data(), memory.data(), count * sizeof(T), cudaMemcpyDeviceToHost),
              "download");
  return values;
}

// An array on the device in float32 or bfloat16, and its values on the host.
class TestArray {
 public:
  TestArray(bool bf16, std::vector<double> numbers) : bf16_(bf16), values(std::move(numbers)) {
    std::vector<float> floats;
    std::vector<uint16_t> rounded;
    for (double& x : values) {
      const auto value = static_cast<float>(x);
      const BF16 nearest = ToBF16(value);
      floats.push_back(value);
      rounded.push_back(nearest.bits);
      x = bf16 ? ToFloat(nearest) : value;
    }
    memory_ = bf16 ? Upload(rounded) : Upload(floats);
  }
  // Uniform in (−size, size).
  static TestArray Random(bool bf16, int64_t count, std::mt19937& random, double size = 1.0) {
    std::uniform_real_distribution<double> uniform(-size, size);
    std::vector<double> numbers(static_cast<size_t>(count));
    for (double& x : numbers) x = uniform(random);
    return {bf16, std::move(numbers)};
  }
  static TestArray Filled(bool bf16, int64_t count, double value) {
    return {bf16, std::vector<double>(static_cast<size_t>(count), value)};
  }

  operator Array() const {  // NOLINT(google-explicit-constructor)
    return bf16_ ? Array(memory_.as<BF16>()) : Array(memory_.as<float>());
  }
  operator ConstArray() const { return Array(*this); }  // NOLINT(google-explicit-constructor)
  float* floats() const { return memory_.as<float>(); }
  bool bf16() const { return bf16_; }
  int64_t size() const { return static_cast<int64_t>(values.size()); }
  std::vector<double> Read() const {
    std::vector<double> numbers;
    if (bf16_) {
      for (const uint16_t bits : Download<uint16_t>(memory_, values.size()))
        numbers.push_back(ToFloat(BF16{bits}));
    } else {
      for (const float x : Download<float>(memory_, values.size())) numbers.push_back(x);
    }
    return numbers;
  }

 private:
  bool bf16_;
  cuda::DeviceMemory memory_;

 public:
  std::vector<double> values;  // those that were uploaded
};

// Expects |got − want| <= rounding · |want| + tolerance · size, with size the root mean square of
// `want`.
inline void ExpectClose(const std::vector<double>& got, const std::vector<double>& want,
                        double tolerance, double rounding, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double squares = 0;
  for (const double x : want) squares += x * x;
  const double size =
      std::sqrt(squares / static_cast<double>(std::max<size_t>(want.size(), 1))) + 1e-30;
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = (std::abs(got[i] - want[i]) - rounding * std::abs(want[i])) / size;
    if (error <= worst && std::isfinite(got[i])) continue;
    worst = std::isfinite(got[i]) ? error : INFINITY;
    at = i;
    if (!std::isfinite(got[i])) break;
  }
  EXPECT_LE(worst, tolerance) << what << ": element " << at << " of " << want.size() << " is "
                              << got[at] << ", want " << want[at] << ", typical size " << size;
}
// For results in float32 (sums in float32) or rounded to bfloat16.
inline void ExpectClose(const TestArray& got, const std::vector<double>& want, double tolerance,
                        const std::string& what) {
  ExpectClose(got.Read(), want, tolerance, got.bf16() ? 1.0 / 256 : 0.0, what);
}

// For sums of products of rounded operands, whose largest error may be many times a typical one.
// The root mean square of the errors is at most `tolerance` times that of `want`, and no error is
// more than 50 times as large.
inline void ExpectTypicallyClose(const TestArray& got, const std::vector<double>& want,
                                 double tolerance, const std::string& what) {
  const std::vector<double> values = got.Read();
  ExpectClose(values, want, 50 * tolerance, 0.0, what);
  double errors = 0, squares = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    errors += (values[i] - want[i]) * (values[i] - want[i]);
    squares += want[i] * want[i];
  }
  EXPECT_LE(std::sqrt(errors / squares), tolerance) << what;
}

}  // namespace switchyard::train::gpu
