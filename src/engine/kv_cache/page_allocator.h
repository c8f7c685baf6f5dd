// Which pages of the cache are free.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard {

// Hands out page numbers [0, total); the memory behind them is KvStorage's (model/model.h). Last
// freed, first given, so that every rank gets the same numbers. The rank's thread only.
class PageAllocator {
 public:
  explicit PageAllocator(int64_t total);

  int64_t total() const { return static_cast<int64_t>(taken_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }

  int32_t Allocate();  // there is one: callers look at free() first
  void Free(int32_t page);

 private:
  std::vector<int32_t> free_;
  std::vector<bool> taken_;  // finds a page that is freed twice
};

}  // namespace switchyard
