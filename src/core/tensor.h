// A dense row-major array with a type and a shape. Small on purpose: memory and views, no math.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/dtype.h"

namespace switchyard {

template <typename T>
constexpr DType DTypeOf();
template <>
constexpr DType DTypeOf<float>() {
  return DType::kF32;
}
template <>
constexpr DType DTypeOf<BF16>() {
  return DType::kBF16;
}
template <>
constexpr DType DTypeOf<F16>() {
  return DType::kF16;
}
template <>
constexpr DType DTypeOf<int32_t>() {
  return DType::kI32;
}
template <>
constexpr DType DTypeOf<int64_t>() {
  return DType::kI64;
}
template <>
constexpr DType DTypeOf<uint8_t>() {
  return DType::kU8;
}

// Copies of a Tensor share its memory: an allocation, a mapped file, or the memory of a View. The
// memory lives as long as any of them. Not synchronised: writers need external synchronisation.
class Tensor {
 public:
  Tensor() = default;

  // Allocates zeroed memory, aligned to 64 bytes, with huge pages if it is large and the kernel
  // provides them. Throws Error kResource when out of memory.
  static Tensor Empty(DType dtype, std::vector<int64_t> shape);
  // `owner` keeps `data` alive; null if the caller guarantees its lifetime.
  static Tensor View(const void* data, DType dtype, std::vector<int64_t> shape,
                     std::shared_ptr<const void> owner = nullptr);

  bool defined() const { return data_ != nullptr; }
  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t dim(int i) const { return shape_[i < 0 ? i + shape_.size() : i]; }
  int rank() const { return static_cast<int>(shape_.size()); }
  int64_t num_elements() const;
  size_t num_bytes() const { return static_cast<size_t>(num_elements()) * SizeOf(dtype_); }

  const void* raw() const { return data_; }
  void* mutable_raw() { return data_; }
  template <typename T>
  const T* data() const {
    CHECK(dtype_ == DTypeOf<T>());
    return static_cast<const T*>(data_);
  }
  template <typename T>
  T* data() {
    CHECK(dtype_ == DTypeOf<T>());
    return static_cast<T*>(data_);
  }
  template <typename T>
  std::span<const T> span() const {
    return {data<T>(), static_cast<size_t>(num_elements())};
  }

  // A copy converted to float32 (from F32, BF16, F16 or FP8).
  Tensor ToFloat32() const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  std::vector<int64_t> shape_;
  std::shared_ptr<const void> owner_;
};

std::string ShapeString(std::span<const int64_t> shape);  // "[4, 64]"

}  // namespace switchyard
