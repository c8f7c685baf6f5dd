// Brings mapped files into memory before the first token waits for them.
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

// Reads the pages of the mapped ranges (any order, overlaps count once), with progress in bytes
// after each chunk. Error kResource where the file cannot be read.
void Prefault(std::vector<MappedRange> ranges,
              const std::function<void(size_t done, size_t total)>& progress);

}  // namespace switchyard
