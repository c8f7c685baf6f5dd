// Random GEMM cases for tests, with reference sums in float64.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/cuda/runtime.h"
#include "core/dtype.h"
#include "kernels/cuda/gemm/gemm_problem.h"

namespace switchyard::cuda {

template <typename T>
DeviceMemory Upload(const std::vector<T>& values) {
  DeviceMemory memory(std::max<size_t>(values.size(), 1) * sizeof(T));
  CopyToDevice(memory.data(), values.data(), values.size() * sizeof(T), "upload");
  return memory;
}
template <typename T>
std::vector<T> Download(const DeviceMemory& memory, size_t count) {
  std::vector<T> values(count);
  Check(cudaMemcpy(values.data(), memory.data(), count * sizeof(T), cudaMemcpyDeviceToHost),
        "download");
  return values;
}

// Matrices of normally distributed values in bfloat16, or in e4m3 with scales, on host and device.
class GemmProblemData {
 public:
  GemmProblemData(bool fp8, int groups, int64_t rows, int64_t n, int64_t k, unsigned seed)
      : fp8(fp8), groups(groups), rows(rows), n(n), k(k), random_(seed) {
    Fill(rows * k, a_, a);
    Fill(groups * n * k, b_, b);
    if (fp8) {
      a_scales_ = Scales(k / 128 * rows);
      b_scales_ = Scales(groups * scale_rows() * (k / 128));
    }
    bias_ = Scales(groups * n);
    a_scales = Upload(a_scales_);
    b_scales = Upload(b_scales_);
    bias = Upload(bias_);
  }

  // The sum of products for an element of D, without bias.
  double Sum(int group, int64_t row, int64_t column) const {
    double sum = 0.0;
    for (int64_t i = 0; i < k; ++i) {
      double scale = 1.0;
      if (fp8)
        scale = double{a_scales_[i / 128 * rows + row]} *
                b_scales_[(group * scale_rows() + column / 128) * (k / 128) + i / 128];
      sum += scale * a_[row * k + i] * b_[(group * n + column) * k + i];
    }
    return sum;
  }
  // The magnitude that errors are relative to: the root of the sum of squared products.
  double Size(int group, int64_t row, int64_t column) const {
    double sum = 0.0;
    for (int64_t i = 0; i < k; ++i) {
      double scale = 1.0;
      if (fp8)
        scale = double{a_scales_[i / 128 * rows + row]} *
                b_scales_[(group * scale_rows() + column / 128) * (k / 128) + i / 128];
      const double product = scale * a_[row * k + i] * b_[(group * n + column) * k + i];
      sum += product * product;
    }
    return std::sqrt(sum);
  }
  float Bias(int group, int64_t column) const { return bias_[group * n + column]; }

  GemmProblem Problem(void* d, bool float_output) const {
    return {.fp8 = fp8,
            .a = a.data(),
            .lda = k,
            .a_scales = fp8 ? a_scales.as<float>() : nullptr,
            .ld_a_scales = rows,
            .b = b.data(),
            .b_scales = fp8 ? b_scales.as<float>() : nullptr,
            .d = d,
            .ldd = n,
            .float_output = float_output,
            .rows = rows,
            .n = n,
            .k = k,
            .groups = groups};
  }

  const bool fp8;
  const int groups;
  const int64_t rows, n, k;
  DeviceMemory a, b, a_scales, b_scales, bias;

 private:
  int64_t scale_rows() const { return (n + 127) / 128; }

  void Fill(int64_t count, std::vector<float>& values, DeviceMemory& memory) {
    std::normal_distribution<float> normal;
    values.resize(count);
    std::vector<uint16_t> bf16(fp8 ? 0 : count);
    std::vector<uint8_t> e4m3(fp8 ? count : 0);
    for (int64_t i = 0; i < count; ++i) {
      const float x = normal(random_);
      if (fp8) {
        const F8E4M3 code = ToF8E4M3(30.0f * x);
        e4m3[i] = code.bits;
        values[i] = ToFloat(code);
      } else {
        const BF16 rounded = ToBF16(x);
        bf16[i] = rounded.bits;
        values[i] = ToFloat(rounded);
      }
    }
    memory = fp8 ? Upload(e4m3) : Upload(bf16);
  }
  std::vector<float> Scales(int64_t count) {
    std::uniform_real_distribution<float> uniform(0.01f, 0.03f);
    std::vector<float> values(count);
    for (float& x : values) x = uniform(random_);
    return values;
  }

  std::mt19937 random_;
  std::vector<float> a_, b_, a_scales_, b_scales_, bias_;
};

// Relative error of tensor core sums: FP8 products are accumulated with about 14 bits over 128
// elements.
inline double Tolerance(bool fp8) { return fp8 ? 2e-3 : 1e-5; }

}  // namespace switchyard::cuda
