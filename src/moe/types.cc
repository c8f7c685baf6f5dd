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

}  // namespace switchyard
