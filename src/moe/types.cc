#include "moe/types.h"

#include <algorithm>

namespace switchyard {

std::string_view Name(DispatchLayout layout) {
  switch (layout) {
    case DispatchLayout::kStandard:
      return "standard";
    case DispatchLayout::kNormal:
      return "normal";
    case DispatchLayout::kLowLatency:
      return "low-latency";
  }
  return "?";
}

std::string_view Name(RunnerLayout layout) {
  switch (layout) {
    case RunnerLayout::kContiguous:
      return "contiguous";
    case RunnerLayout::kMasked:
      return "masked";
  }
  return "?";
}

Share EvenShare(int64_t total, int64_t parts, int64_t part) {
  const int64_t length = total / parts, longer = total % parts;
  const int64_t begin = part * length + std::min(part, longer);
  return {begin, begin + length + (part < longer ? 1 : 0)};
}

}  // namespace switchyard
