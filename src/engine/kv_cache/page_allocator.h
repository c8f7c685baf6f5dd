// Free list of the cache's pages.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv_cache/page_records.h"
#include "engine/kv_cache/state_slots.h"

namespace switchyard {

// Allocates page numbers [0, total); KvStorage (model/kv_storage.h) owns their memory. The free
// list is LIFO, so that every rank gets the same numbers. A free page has no record, because its
// next owner overwrites it. For the same reason it has no
// checkpoint of recurrent states. Borrows records and slots. Used by the rank's thread only.
class PageAllocator {
 public:
  explicit PageAllocator(int64_t total, PageRecords* records = nullptr,
                         StateSlots* states = nullptr);

  int64_t total() const { return static_cast<int64_t>(taken_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }

  int32_t Allocate();  // requires free() > 0
  void Free(int32_t page);
  // Marks page p as allocated if pages[p], [total]. The other pages stay free. No page may have
  // been allocated before.
  void Take(const std::vector<bool>& pages);

 private:
  PageRecords* const records_;  // or null
  StateSlots* const states_;    // or null
  std::vector<int32_t> free_;
  std::vector<bool> taken_;  // detects double frees
};

}  // namespace switchyard
