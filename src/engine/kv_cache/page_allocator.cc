#include "engine/kv_cache/page_allocator.h"

#include <limits>

#include "core/check.h"

namespace switchyard {

PageAllocator::PageAllocator(int64_t total, PageRecords* records, StateSlots* states)
    : records_(records), states_(states), taken_(total, false) {
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
  if (records_) records_->Clear(page);
  if (states_) states_->Forget(page);
  free_.push_back(page);
}

void PageAllocator::Take(const std::vector<bool>& pages) {
  CHECK_EQ(pages.size(), taken_.size());
  CHECK_EQ(free_.size(), taken_.size());
  free_.clear();
  taken_ = pages;
  for (int64_t page = total() - 1; page >= 0; --page) {
    if (taken_[page]) continue;
    if (records_) records_->Clear(static_cast<int32_t>(page));
    free_.push_back(static_cast<int32_t>(page));
  }
}

}  // namespace switchyard
