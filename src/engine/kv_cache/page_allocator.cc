#include "engine/kv_cache/page_allocator.h"

#include <limits>

#include "core/check.h"

namespace switchyard {

PageAllocator::PageAllocator(int64_t total) : taken_(total, false) {
  CHECK_GT(total, 0);
  CHECK_LE(total, std::numeric_limits<int32_t>::max());
  free_.reserve(total);
  for (int64_t page = total - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

int32_t PageAllocator::Allocate() {
  CHECK(!free_.empty());
  const int32_t page = free_.back();
  free_.pop_back();
  taken_[page] = true;
  return page;
}

void PageAllocator::Free(int32_t page) {
  CHECK_LT(static_cast<size_t>(page), taken_.size());
  CHECK(taken_[page]);
  taken_[page] = false;
  free_.push_back(page);
}

}  // namespace switchyard
