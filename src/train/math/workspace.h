// Temporary buffers of operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace switchyard::train {

// A buffer of `count` elements with unspecified contents. The heap returns large arrays as fresh
// pages, whose page faults can cost more than the computation. So each thread keeps released
// buffers in a cache. Use a buffer only on the thread that constructed it.
template <typename T>
class ScratchBuffer {
 public:
  explicit ScratchBuffer(int64_t count) : memory_(Take(static_cast<size_t>(count))) {}
  ~ScratchBuffer() { Kept().push_back(std::move(memory_)); }
  ScratchBuffer(const ScratchBuffer&) = delete;
  ScratchBuffer& operator=(const ScratchBuffer&) = delete;

  T* data() { return memory_.data(); }
  const T* data() const { return memory_.data(); }

 private:
  static std::vector<std::vector<T>>& Kept() {
    static thread_local std::vector<std::vector<T>> kept;
    return kept;
  }
  // Takes the smallest cached buffer that is large enough. If there is none, takes the largest and
  // grows it.
  static std::vector<T> Take(size_t count) {
    std::vector<std::vector<T>>& kept = Kept();
    size_t best = kept.size();
    for (size_t i = 0; i < kept.size(); ++i) {
      const size_t size = kept[i].size(), other = best < kept.size() ? kept[best].size() : 0;
      const bool better = size >= count ? other < count || size < other : size > other;
      if (best == kept.size() || better) best = i;
    }
    std::vector<T> memory;
    if (best < kept.size()) {
      memory = std::move(kept[best]);
      kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(best));
    }
    if (memory.size() < count) {
      memory.clear();  // avoids a copy in resize
      memory.resize(count);
    }
    return memory;
  }

  std::vector<T> memory_;
};

constexpr int64_t kLineFloats = 16;  // floats of a cache line

// The first cache-line-aligned element; the buffer needs kLineFloats spare elements.
inline float* AlignedToLine(float* p) {
  const auto at = reinterpret_cast<uintptr_t>(p) / sizeof(float);
  return p + (kLineFloats - at % kLineFloats) % kLineFloats;
}
inline double* AlignedToLine(double* p) { return p; }  // gradient checks do not need alignment

}  // namespace switchyard::train
