// Sums of exponentials of logits, with equal bits on CPUs and GPUs. Included by device code.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#ifdef __CUDACC__
#define SWITCHYARD_HOST_AND_DEVICE __host__ __device__
#else
#define SWITCHYARD_HOST_AND_DEVICE
#endif

namespace switchyard::kernels {

// The order of the additions. A chunk of kExpChunk values has kExpLanes float32 sums: lane i adds
// up the values i, i + kExpLanes, … The sums of a chunk are added to the total, which is a double,
// in the order of lanes. Values after the last whole block of kExpBlock are added to the total
// before the sums of the last chunk, unless this chunk is whole.
constexpr size_t kExpBlock = 64;    // values per inner loop on CPUs: a few vectors
constexpr size_t kExpLanes = 16;    // enough for one AVX-512 register
constexpr size_t kExpChunk = 4096;  // a multiple of kExpBlock

// Products and sums that a GPU's compiler does not contract into FMA. Code for CPUs is compiled
// with -ffp-contract=off.
SWITCHYARD_HOST_AND_DEVICE inline float RoundedProduct(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
SWITCHYARD_HOST_AND_DEVICE inline float RoundedSum(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

// exp(x) for x in [−inf, 0]: x = n · ln 2 + r with |r| ≤ ln 2 / 2, a polynomial in r, and 2^n
// through the exponent bits. Coefficients are Cephes' expf (Moshier).
SWITCHYARD_HOST_AND_DEVICE inline float ExpOfNonPositive(float x) {
  constexpr float kLowest = -85.0f;  // 2^n stays a normal number; exp(−85) is about 1e-37
  const float clamped = x < kLowest ? kLowest : x;
  // Adding 1.5 · 2^23 leaves no fraction bits: the sum's low bits are the nearest integer.
  constexpr float kRound = 12582912.0f;
  const float shifted = RoundedSum(RoundedProduct(clamped, 1.44269504088896341f), kRound);
  const float n = RoundedSum(shifted, -kRound);
  const float high = RoundedSum(clamped, -RoundedProduct(n, 0.693359375f));
  const float r = RoundedSum(high, RoundedProduct(n, 2.12194440e-4f));
  float p = 1.9875691500e-4f;
  p = RoundedSum(RoundedProduct(p, r), 1.3981999507e-3f);
  p = RoundedSum(RoundedProduct(p, r), 8.3334519073e-3f);
  p = RoundedSum(RoundedProduct(p, r), 4.1665795894e-2f);
  p = RoundedSum(RoundedProduct(p, r), 1.6666665459e-1f);
  p = RoundedSum(RoundedProduct(p, r), 5.0000001201e-1f);
  p = RoundedSum(RoundedSum(RoundedProduct(RoundedProduct(p, r), r), r), 1.0f);
#ifdef __CUDA_ARCH__
  const float power = __uint_as_float((__float_as_uint(shifted) + 127u) << 23);
#else
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127u) << 23);
#endif
  return x < kLowest ? 0.0f : RoundedProduct(p, power);
}

// Adds up whole blocks and single values.
class ExpLaneSum {
 public:
  void AddBlock(const float* __restrict block) {
    for (size_t i = 0; i < kExpBlock; i += kExpLanes)
      for (size_t lane = 0; lane < kExpLanes; ++lane) lanes_[lane] += block[i + lane];
    if (++blocks_ == kExpChunk / kExpBlock) Flush();
  }
  void Add(float value) { total_ += value; }
  double Total() {
    Flush();
    return total_;
  }

 private:
  void Flush() {
    for (float& lane : lanes_) {
      total_ += lane;
      lane = 0.0f;
    }
    blocks_ = 0;
  }
  float lanes_[kExpLanes] = {};
  double total_ = 0.0;
  size_t blocks_ = 0;
};

// The sum of exp(values[i] − max), for values up to max; −inf gives 0.
inline double ExpSum(std::span<const float> values, float max) {
  ExpLaneSum sum;
  const size_t whole = values.size() / kExpBlock * kExpBlock;
  for (size_t i = 0; i < whole; i += kExpBlock) {
    float block[kExpBlock];
    const float* __restrict in = values.data() + i;
    for (size_t j = 0; j < kExpBlock; ++j) block[j] = ExpOfNonPositive(in[j] - max);
    sum.AddBlock(block);
  }
  for (const float value : values.subspan(whole)) sum.Add(ExpOfNonPositive(value - max));
  return sum.Total();
}

}  // namespace switchyard::kernels
