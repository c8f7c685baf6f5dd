// How many layers of its present pass a rank has computed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/check.h"

namespace switchyard {

// One number in shared memory. The rank's thread writes it, once keys and values of a layer are in
// the cache; other processes read it. Borrows the memory, which is initially zero.
class KvProgress {
 public:
  explicit KvProgress(std::span<std::byte> memory)
      : value_(reinterpret_cast<std::atomic<uint64_t>*>(memory.data())) {
    CHECK_GE(memory.size(), sizeof *value_);
    CHECK_EQ(reinterpret_cast<uintptr_t>(memory.data()) % alignof(std::atomic<uint64_t>), 0u);
  }

  // The first `layers` layers of the pass have their keys and values.
  void Publish(uint64_t pass, int64_t layers) {
    value_->store(Word(pass, layers), std::memory_order_release);
  }
  // The number in the first 8 bytes of the memory, for a GPU that writes it.
  static uint64_t Word(uint64_t pass, int64_t layers) {
    return pass << kLayerBits | static_cast<uint64_t>(layers);
  }
  // The published number of layers of this pass. If a later one was published last: `later`; if an
  // earlier one: 0.
  int64_t LayersOf(uint64_t pass, int64_t later = 0) const {
    const uint64_t value = value_->load(std::memory_order_acquire);
    if (value >> kLayerBits > pass) return later;
    return value >> kLayerBits == pass ? static_cast<int64_t>(value & kLayerMask) : 0;
  }

 private:
  static constexpr int kLayerBits = 16;
  static constexpr uint64_t kLayerMask = (uint64_t{1} << kLayerBits) - 1;

  std::atomic<uint64_t>* value_;
};

}  // namespace switchyard
