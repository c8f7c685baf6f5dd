// 16-byte accesses to the caller's memory. Internal to comm/device/cuda.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace switchyard::cuda {

// A caller's array, read and written in quads of 16 bytes. Elements beyond its end read as zero and
// are not written.
template <typename Unit>
class Quads {
 public:
  static constexpr int kUnits = 16 / sizeof(Unit);
  __device__ Quads(Unit* data, size_t count)
      : data_(data), count_(count), aligned_(reinterpret_cast<uintptr_t>(data) % 16 == 0) {}

  __device__ uint32_t size() const { return (count_ + kUnits - 1) / kUnits; }

  __device__ uint4 Get(size_t quad) const {
    if (aligned_ && (quad + 1) * kUnits <= count_)
      return *reinterpret_cast<const uint4*>(data_ + quad * kUnits);
    uint4 value = {};
    auto* units = reinterpret_cast<std::remove_const_t<Unit>*>(&value);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (quad * kUnits + u < count_) units[u] = data_[quad * kUnits + u];
    }
    return value;
  }

  __device__ void Set(size_t quad, uint4 value) const {
    if (aligned_ && (quad + 1) * kUnits <= count_) {
      *reinterpret_cast<uint4*>(data_ + quad * kUnits) = value;
      return;
    }
    const auto* units = reinterpret_cast<const Unit*>(&value);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (quad * kUnits + u < count_) data_[quad * kUnits + u] = units[u];
    }
  }

 private:
  Unit* data_;
  size_t count_;
  bool aligned_;
};

__device__ inline uint4 Add(uint4 a, uint4 b) {
  return {__float_as_uint(__uint_as_float(a.x) + __uint_as_float(b.x)),
          __float_as_uint(__uint_as_float(a.y) + __uint_as_float(b.y)),
          __float_as_uint(__uint_as_float(a.z) + __uint_as_float(b.z)),
          __float_as_uint(__uint_as_float(a.w) + __uint_as_float(b.w))};
}

__device__ inline size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// Elements [begin, end) of an array of `count`, clamped to its length.
template <typename Unit>
__device__ Quads<Unit> QuadSlice(Unit* whole, size_t count, size_t begin, size_t end) {
  begin = Min(begin, count);
  return {whole + begin, Min(end, count) - begin};
}

}  // namespace switchyard::cuda
