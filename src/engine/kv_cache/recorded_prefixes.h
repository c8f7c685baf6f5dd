// The prefixes that records of pages describe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/kv_cache/page_records.h"

namespace switchyard {

struct RecordedPrefix {
  std::string salt;
  std::vector<int32_t> tokens;  // [pages · page_size]
  std::vector<int32_t> pages;
};

// The longest chains of recorded pages, each from its first page on, in ascending order of their
// last pages. They cover every page whose preceding pages all have records. Skips records that
// contradict each other, because the process that wrote them may have damaged the memory before it
// ended.
std::vector<RecordedPrefix> RecordedPrefixes(const PageRecords& records, int64_t num_pages);

}  // namespace switchyard
