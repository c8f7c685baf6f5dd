// Memory that an operation needs while it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace switchyard::train {

// `count` elements of whatever was there before. Large arrays from the heap come as fresh pages,
// which cost more to touch than much of what is computed in them: so each thread keeps those that
// were given back. Used by the thread that made it.
template <typename T>
class Temporary {
 public:
  explicit Temporary(int64_t count) : memory_(Take(static_cast<size_t>(count))) {}
  ~Temporary() { Kept().push_back(std::move(memory_)); }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  T* data() { return memory_.data(); }
  const T* data() const { return memory_.data(); }

 private:
  static std::vector<std::vector<T>>& Kept() {
    static thread_local std::vector<std::vector<T>> kept;
    return kept;
  }
  // The smallest that is large enough, else the largest, grown.
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
      memory.clear();  // nothing is copied
      memory.resize(count);
    }
    return memory;
  }

  std::vector<T> memory_;
};

constexpr int64_t kLineFloats = 16;  // of a cache line

// The first element at a cache line's begin; memory wants kLineFloats more than is used.
inline float* AlignedToLine(float* p) {
  const auto at = reinterpret_cast<uintptr_t>(p) / sizeof(float);
  return p + (kLineFloats - at % kLineFloats) % kLineFloats;
}
inline double* AlignedToLine(double* p) { return p; }  // for checks: no matter

}  // namespace switchyard::train
