// Data passed between the stages of the MoE path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "core/range.h"
#include "moe/router/router.h"
#include "moe/rows.h"

namespace switchyard {

// Layout of dispatched rows on the rank that owns their experts.
enum class DispatchLayout : uint8_t {
  kStandard,  // every row of the group, each once
  kNormal,    // one row per (token, destination rank), grouped by source rank
  // As kNormal, with places [E_local, sources, capacity] that list the rows of each expert.
  kLowLatency,
};

// Layout of a runner's input rows.
enum class RunnerLayout : uint8_t {
  // Grouped by expert with exact counts; offsets [E_local + 1] separate the experts.
  kContiguous,
  kMasked,  // [E_local, capacity, H] of which the first counts[e] rows are valid
};

std::string_view Name(DispatchLayout layout);
std::string_view Name(RunnerLayout layout);

// The tokens that a sum covers: those with the indices `tokens` [count] or, if null, the first
// `count` tokens.
struct TokenList {
  int64_t count = 0;
  const int32_t* tokens = nullptr;
  int64_t At(int64_t i) const { return tokens ? tokens[i] : i; }
};

// Expert outputs for combine, and the dispatched row to which each output belongs.
struct ExpertRows {
  // [num_rows, H]. Null if the runner has written the outputs to Dispatcher::OutputDestinations, or
  // before the runner has run.
  const float* rows = nullptr;
  int64_t num_rows = 0;  // includes padding rows of a masked layout
  // Standard and normal layout: [dispatched rows, k] index of the output for slot j of row n, or
  // −1.
  const int32_t* position = nullptr;
  // Low-latency layout: places [num_places] in [E_local, sources, capacity]. place_rows: the index
  // of the output of each place.
  const int32_t* places = nullptr;
  const int32_t* place_rows = nullptr;
  int64_t num_places = 0;
};

// A part of the outputs of a combine in several parts (expert_parts.h).
struct OutputPart {
  int index = 0;
  Range rows;  // range of the runner's outputs; consecutive parts ascend
};

// Position of a round in a combine that covers several rounds, the same on every rank. By default
// each round has its own combine.
struct RoundPlace {
  // Index of the round's first token among a rank's tokens of all rounds. If a rank has tokens in
  // this round, all its rounds before it are full.
  int64_t first_token = 0;
  bool last = true;
};

// State of one batch between BeginDispatch and EndCombine. The dispatcher itself has no per-batch
// state, so that any number of batches can be in flight. Owned by the caller that runs the batch.
// Reusing a finished handle reuses its arrays: the steady state allocates nothing.
class DispatchHandle {
 public:
  DispatchLayout layout = DispatchLayout::kStandard;
  const TopK* topk = nullptr;  // routing of the own tokens; owned by the caller
  RoundPlace round;            // set by the caller before InputRows and BeginDispatch

  // The dispatcher's per-batch state. It is created at first use and kept as long as the handle.
  // Each dispatcher, and each mode of a dispatcher, has its own state type.
  template <typename State>
  State& Get() {
    for (const auto& entry : states_)
      if (auto* held = dynamic_cast<Held<State>*>(entry.get())) return held->state;
    auto held = std::make_unique<Held<State>>();
    State& state = held->state;
    states_.push_back(std::move(held));
    return state;
  }

 private:
  struct HeldBase {
    virtual ~HeldBase() = default;
  };
  template <typename State>
  struct Held : HeldBase {
    State state;
  };
  std::vector<std::unique_ptr<HeldBase>> states_;
};

// Received rows after EndDispatch, on the rank of their experts. The pointers refer to the handle,
// to exchange buffers and to the caller's x. They are valid until BeginCombine returns: after that
// a peer may send its next batch.
struct Dispatched {
  DispatchLayout layout = DispatchLayout::kStandard;
  const std::byte* rows = nullptr;  // rows of `format`
  RowFormat format;
  int64_t num_rows = 0;
  // [num_rows] location of row n: index row_at[n] of `rows`; if row_at[n] is negative, row
  // ~row_at[n] of own_x. Rows of own tokens are neither copied nor rounded before the runner reads
  // them. If row_at is null, row n is at index n.
  const int32_t* row_at = nullptr;
  const float* own_x = nullptr;  // [own tokens, H]
  // [num_rows] address of row n, which may be in the arena of any rank of this host. If null,
  // row_at applies.
  const std::byte* const* row_places = nullptr;

  // Standard and normal layout.
  const int32_t* topk_ids = nullptr;  // [num_rows, k], row stride topk_stride: local ids, or −1
  int64_t topk_stride = 0;
  int k = 0;

  // Low-latency layout.
  int sources = 0;
  int64_t capacity = 0;
  const int32_t* counts = nullptr;     // [sources, E_local] valid places, row stride counts_stride
  const int32_t* place_row = nullptr;  // [E_local, sources, capacity] row index of each valid place
  int64_t counts_stride = 0;
};

}  // namespace switchyard
