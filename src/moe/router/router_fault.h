// Records of router scores that are not finite.
#pragma once

#include <cstdint>

namespace switchyard {

// A fault is one integer that encodes a layer and an expert; 0: no fault. The minimum of several
// faults is the one with the first layer, and in that layer with the lowest expert.
constexpr int32_t kFaultLayer = 65536;  // greater than the number of experts of a layer

constexpr int32_t FaultOf(int layer, int expert) { return (layer + 1) * kFaultLayer + expert; }
constexpr int LayerOfFault(int32_t fault) { return fault / kFaultLayer - 1; }
constexpr int ExpertOfFault(int32_t fault) { return fault % kFaultLayer; }

// Where the layers of a pass record faults. Layers run one after the other, and a later layer keeps
// the fault of an earlier one. So a token's record is its first fault since the record was last
// cleared.
struct RouterFaults {
  int32_t* records = nullptr;      // null: faults are not recorded
  const int32_t* index = nullptr;  // [tokens of this group] each token's element of `records`

  RouterFaults From(int64_t token) const {
    return records ? RouterFaults{records, index + token} : RouterFaults{};
  }
};

}  // namespace switchyard
