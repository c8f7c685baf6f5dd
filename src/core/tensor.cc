#include "core/tensor.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Anonymous mappings are zeroed and page-aligned. Large ones use huge pages, which saves TLB misses
// when weights and KV pages are streamed.
std::shared_ptr<void> Allocate(size_t bytes) {
  if (bytes == 0) bytes = 1;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    throw Resource("cannot allocate {} MiB: {}", bytes >> 20, std::strerror(errno));
  }
  if (bytes >= kHugePage) madvise(p, bytes, MADV_HUGEPAGE);
  return {p, [bytes](void* q) { munmap(q, bytes); }};
}

}  // namespace

Tensor Tensor::Empty(DType dtype, std::vector<int64_t> shape) {
  Tensor t;
  t.dtype_ = dtype;
  t.shape_ = std::move(shape);
  std::shared_ptr<void> memory = Allocate(t.num_bytes());
  t.data_ = memory.get();
  t.owner_ = std::move(memory);
  return t;
}

Tensor Tensor::View(const void* data, DType dtype, std::vector<int64_t> shape,
                    std::shared_ptr<const void> owner) {
  Tensor t;
  t.data_ = const_cast<void*>(data);
  t.dtype_ = dtype;
  t.shape_ = std::move(shape);
  t.owner_ = std::move(owner);
  return t;
}

int64_t Tensor::num_elements() const {
  int64_t n = 1;
  for (int64_t d : shape_) n *= d;
  return n;
}

Tensor Tensor::ToFloat32() const {
  Tensor out = Empty(DType::kF32, shape_);
  float* to = out.data<float>();
  const int64_t n = num_elements();
  const auto convert = [&]<typename T>(const T* from) {
    for (int64_t i = 0; i < n; ++i) to[i] = ToFloat(from[i]);
  };
  switch (dtype_) {
    case DType::kF32:
      std::memcpy(to, data_, num_bytes());
      break;
    case DType::kBF16:
      convert(static_cast<const BF16*>(data_));
      break;
    case DType::kF16:
      convert(static_cast<const F16*>(data_));
      break;
    case DType::kF8E4M3:
      convert(static_cast<const F8E4M3*>(data_));
      break;
    default:
      CheckFailed(__FILE__, __LINE__, fmt::format("cannot convert {} to float32", Name(dtype_)));
  }
  return out;
}

std::string ShapeString(std::span<const int64_t> shape) {
  return fmt::format("[{}]", Joined(shape, ", "));
}

}  // namespace switchyard
