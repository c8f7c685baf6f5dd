// How many layers of its present pass a rank has computed, and a bell that announces changes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/device/futex.h"
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

// Wakes a process that waits for the progress of any rank. A GPU cannot ring it. All ranks and the
// waiter use one bell, in the memory of the progress of the first rank. Borrows the memory, which
// is initially zero.
class KvBell {
 public:
  explicit KvBell(std::span<std::byte> memory)
      : words_(reinterpret_cast<Words*>(memory.data() + kOffset)) {
    CHECK_GE(memory.size(), kOffset + sizeof *words_);
    CHECK_EQ(reinterpret_cast<uintptr_t>(memory.data()) % alignof(uint64_t), 0u);
  }

  // Call after KvProgress::Publish.
  void Ring() {
    words_->rings.fetch_add(1);
    if (words_->waits.load() != 0) FutexWakeAll(reinterpret_cast<uint32_t*>(&words_->rings));
  }
  // The number of rings so far, to be read before the progress.
  uint32_t rings() const { return words_->rings.load(); }
  // Sleeps until there were other than `seen` rings, at most `longest`. By one thread at a time.
  void Wait(uint32_t seen, std::chrono::nanoseconds longest) {
    words_->waits.store(1);
    FutexWait(reinterpret_cast<uint32_t*>(&words_->rings), seen, longest);
    words_->waits.store(0);
  }

 private:
  static constexpr size_t kOffset = 64;  // the progress has a cache line of its own
  struct Words {
    std::atomic<uint32_t> rings, waits;
  };
  Words* words_;
};

}  // namespace switchyard
