// A KvMover over host memory, for tests without GPUs.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "core/error.h"
#include "engine/kv_transfer/kv_mover.h"

namespace switchyard {

// "Exports" are addresses in this process.
class FakeMover : public KvMover {
 public:
  static KvExport Export(std::span<std::byte> memory) {
    return {.address = reinterpret_cast<uint64_t>(memory.data()), .bytes = memory.size()};
  }

  std::shared_ptr<std::byte> Map(const KvExport& memory) override {
    {
      const std::lock_guard lock(mutex_);
      if (refuses_ && refuses_(memory)) throw Resource("the memory has no peer access");
    }
    ++mapped;
    return {reinterpret_cast<std::byte*>(memory.address), [this](std::byte*) { --mapped; }};
  }
  void Copy(std::span<const KvCopy> some) override {
    for (const KvCopy& copy : some) copy.Run();
    copies += static_cast<int64_t>(some.size());
  }
  void Clear(std::span<const std::span<std::byte>> memory) override {
    for (const std::span<std::byte> part : memory) std::ranges::fill(part, std::byte{0});
  }
  std::shared_ptr<std::byte> Buffer(size_t bytes) override {
    if (full) throw Resource("page-locked memory is full");
    ++buffers;
    return TransferBuffer(nullptr, bytes);
  }

  // Map fails for memory for which `refuses` is true.
  void RefuseIf(std::function<bool(const KvExport&)> refuses) {
    const std::lock_guard lock(mutex_);
    refuses_ = std::move(refuses);
  }

  std::atomic<int64_t> mapped{0}, copies{0}, buffers{0};
  std::atomic<bool> full{false};  // Buffer fails

 private:
  std::mutex mutex_;
  std::function<bool(const KvExport&)> refuses_;
};

}  // namespace switchyard
