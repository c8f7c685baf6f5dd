// Prefaults mapped files, so that the first token does not wait for them. Releases pages that are
// no longer read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace switchyard {

struct MappedRange {
  const uint8_t* begin = nullptr;
  const uint8_t* end = nullptr;
};

// Reads the pages of the mapped ranges (in any order, overlaps count once), with progress in bytes
// after each chunk. Error kResource if a file cannot be read.
void Prefault(std::vector<MappedRange> ranges,
              const std::function<void(size_t done, size_t total)>& progress);

// Removes the whole pages in a range of a mapped file from the process. They are read again when
// they are used.
void DropPages(const MappedRange& range);

}  // namespace switchyard
