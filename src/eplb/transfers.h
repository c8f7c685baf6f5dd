// Plans how the slots of a new placement are filled from the ranks that hold experts now.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eplb/types.h"

namespace switchyard {

// Where a slot of a new placement gets its expert, cheapest source first.
enum class FillFrom : uint8_t {
  kUnchanged,   // the slot already holds the expert
  kSameRank,    // another slot of the rank holds it
  kFreeRider,   // an earlier slot of the same rank receives it
  kSameNode,    // a rank of the same node holds it
  kOtherNode,   // only ranks of other nodes hold it
  kCheckpoint,  // no living rank holds it: load from the checkpoint
};
constexpr int kNumFillFrom = 6;
const char* Name(FillFrom from);

// Transfer of one expert from a slot of one rank to a slot of another.
struct Transfer {
  int32_t expert = 0;
  int from_rank = 0, to_rank = 0;
  int32_t from_slot = 0, to_slot = 0;
  bool operator==(const Transfer&) const = default;
};

struct LayerTransfers {
  std::vector<FillFrom> fills;  // [physical]; kUnchanged for slots of dead ranks
  // Batches of transfers that run concurrently. In a batch, a rank has at most one peer and sends
  // it at most one expert.
  std::vector<std::vector<Transfer>> batches;
};

// A pure function of state that all ranks share, so every rank computes the same sends and receives
// in the same order. The sender of an expert is a holder on the receiver's node if there is one;
// among equals, the holder with the fewest sends so far. The cost order is that of SGLang's
// srt/eplb/expert_location_updater.py. Maps have the format of Placement::Layer and are valid for
// `topology`. In `previous`, slots of ranks that have died since may still have their experts.
LayerTransfers PlanTransfers(std::span<const int32_t> previous, std::span<const int32_t> next,
                             const RankTopology& topology);

// Number of slots filled from each source over all layers: [kNumFillFrom].
std::vector<int64_t> CountFills(const Placement& previous, const Placement& next,
                                const RankTopology& topology);

}  // namespace switchyard
