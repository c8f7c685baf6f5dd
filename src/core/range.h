// Contiguous ranges of items, and their division among ranks or threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace switchyard {

// The items [begin, end) of a sequence.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  Range operator*(int64_t unit) const { return {begin * unit, end * unit}; }
};

// Returns part `part` of `total` items that are split into `parts` contiguous ranges. The lengths
// of ranges differ by at most one `unit`; longer ranges come first. Ranges begin at multiples of
// `unit`, unless there are fewer units than parts: then the unit is one item. The last unit may be
// incomplete.
inline Range EvenPart(int64_t total, int64_t parts, int64_t part, int64_t unit = 1) {
  int64_t units = (total + unit - 1) / unit;
  if (units < parts) units = total, unit = 1;
  const int64_t length = units / parts, longer = units % parts;
  const int64_t begin = part * length + std::min(part, longer);
  const int64_t end = begin + length + (part < longer ? 1 : 0);
  return {std::min(total, begin * unit), std::min(total, end * unit)};
}

}  // namespace switchyard
