// How the places of a new placement are filled from the ranks that hold experts now.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eplb/types.h"

namespace switchyard {

// Cheapest first.
enum class FillFrom : uint8_t {
  kUnchanged,  // the place has the expert already
  kSameRank,   // another place of the rank has it
  kFreeRider,  // another place of the rank, an earlier one, receives it
  kSameNode,   // a rank of the same node has it
  kOtherNode,  // only ranks of other nodes have it
  kStored,     // no living rank has it: from the checkpoint
};
constexpr int kNumFillFrom = 6;
const char* Name(FillFrom from);

// One expert on its way from the place of one rank to the place of another.
struct Transfer {
  int32_t expert = 0;
  int from_rank = 0, to_rank = 0;
  int32_t from_place = 0, to_place = 0;
  bool operator==(const Transfer&) const = default;
};

struct LayerTransfers {
  std::vector<FillFrom> fills;  // [physical]; kUnchanged for places of dead ranks
  // What goes over at the same time: in each batch a rank talks to one peer at most, and sends it
  // one expert at most.
  std::vector<std::vector<Transfer>> batches;
};

// A pure function of what all ranks know, so that every rank finds the same sends and receives in
// the same order. Of several ranks that could send an expert, one of the receiver's node does, and
// of those the one that sends least so far. The order of cheapness is that of SGLang's
// srt/eplb/expert_location_updater.py. Maps as Placement::Layer has them, both valid for
// `topology`; `previous` may have places of ranks that have died since.
LayerTransfers PlanTransfers(std::span<const int32_t> previous, std::span<const int32_t> next,
                             const RankTopology& topology);

// How many places of all layers are filled in each way: [kNumFillFrom].
std::vector<int64_t> CountFills(const Placement& previous, const Placement& next,
                                const RankTopology& topology);

}  // namespace switchyard
