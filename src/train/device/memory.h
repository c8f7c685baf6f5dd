// Arrays in the memory of a device.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "kernels/device.h"

namespace switchyard::train {

// Keeps released memory for later arrays, because a GPU allocates slowly. An array may be released
// while operations that use it are enqueued: later operations run after them. Owned by a rank's
// model; used by the rank's thread only. Outlives its arrays.
class DeviceMemory {
 public:
  explicit DeviceMemory(kernels::Device& device) : device_(device) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  kernels::Device& device() const { return device_; }
  int64_t bytes() const { return bytes_; }  // of all arrays, and of memory kept for later ones

  // A block of at least `bytes`, with unspecified contents. Throws Error kResource.
  struct Block {
    size_t bytes = 0;
    std::shared_ptr<void> data;
  };
  Block Take(size_t bytes) {
    // Few different sizes, so that micro-batches of other lengths find blocks that fit.
    const size_t unit = std::max<size_t>(512, std::bit_floor(bytes) / 8);
    bytes = (bytes + unit - 1) / unit * unit;
    // The smallest kept block that wastes at most as much as it holds.
    const auto found = kept_.lower_bound(bytes);
    if (found != kept_.end() && found->first <= 2 * bytes) {
      Block block{found->first, std::move(found->second)};
      kept_.erase(found);
      return block;
    }
    Block block{bytes, Allocate(bytes)};
    bytes_ += static_cast<int64_t>(bytes);
    return block;
  }
  void Give(Block block) { kept_.emplace(block.bytes, std::move(block.data)); }

 private:
  // If the device is full, frees all kept memory first. The device completes its work before it
  // frees memory.
  std::shared_ptr<void> Allocate(size_t bytes) {
    try {
      return device_.Allocate(bytes);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kResource || kept_.empty()) throw;
    }
    for (const auto& [size, block] : kept_) bytes_ -= static_cast<int64_t>(size);
    kept_.clear();
    return device_.Allocate(bytes);
  }

  kernels::Device& device_;
  std::multimap<size_t, std::shared_ptr<void>> kept_;
  int64_t bytes_ = 0;
};

// `size` elements with unspecified contents; empty by default.
template <typename E>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(DeviceMemory& memory, int64_t size) : memory_(&memory), size_(size) {
    CHECK_GE(size, 0);
    if (size > 0) block_ = memory.Take(static_cast<size_t>(size) * sizeof(E));
  }
  // A copy of host memory.
  DeviceArray(DeviceMemory& memory, std::span<const E> values)
      : DeviceArray(memory, std::ssize(values)) {
    if (size_ > 0) memory.device().CopyIn(data(), values.data(), values.size_bytes());
  }
  ~DeviceArray() { Release(); }
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    if (this == &other) return *this;
    Release();
    memory_ = other.memory_;
    size_ = std::exchange(other.size_, 0);
    block_ = std::exchange(other.block_, {});
    return *this;
  }

  E* data() { return static_cast<E*>(block_.data.get()); }
  const E* data() const { return static_cast<const E*>(block_.data.get()); }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(E)); }
  bool empty() const { return size_ == 0; }

 private:
  void Release() {
    if (block_.data != nullptr) memory_->Give(std::exchange(block_, {}));
  }

  DeviceMemory* memory_ = nullptr;
  int64_t size_ = 0;
  DeviceMemory::Block block_;
};

}  // namespace switchyard::train
