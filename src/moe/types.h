// Data passed between the stages of the MoE path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "moe/router/router.h"
#include "moe/rows.h"

namespace switchyard {

// Layout of dispatched rows on the rank that owns their experts.
enum class DispatchLayout : uint8_t {
  kStandard,    // every row of the group, once each
  kNormal,      // one row per (token, destination rank), grouped by source rank
  kLowLatency,  // rows of kNormal, indexed per expert by [E_local, sources, capacity]
};

// Layout of a runner's input rows.
enum class RunnerLayout : uint8_t {
  kContiguous,  // grouped by expert, exact counts, delimited by offsets [E_local + 1]
  kMasked,      // [E_local, capacity, H] of which the first counts[e] rows are valid
};

std::string_view Name(DispatchLayout layout);
std::string_view Name(RunnerLayout layout);

// Items [begin, end) of a sequence.
struct Share {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
// Part `part` of `total` items that are split into `parts` contiguous runs. Lengths of runs differ
// by at most one, the longer ones first. Used to partition experts over EP ranks, and tokens.
Share EvenShare(int64_t total, int64_t parts, int64_t part);

// The tokens of a sum: those at `tokens` [count], or the first `count` if null.
struct TokenList {
  int64_t count = 0;
  const int32_t* tokens = nullptr;
  int64_t At(int64_t i) const { return tokens ? tokens[i] : i; }
};

// Expert outputs for combine, and the dispatched row of each.
struct ExpertRows {
  // [num_rows, H]; null if the runner wrote them to the dispatcher's destinations
  // (Dispatcher::OutputDestinations), or before the runner has run.
  const float* rows = nullptr;
  int64_t num_rows = 0;  // includes the gaps of a masked layout
  // standard and normal: [dispatched rows, k] index of the output for slot j of row n, or −1.
  const int32_t* position = nullptr;
  // low-latency: [num_places] a place in [E_local, sources, capacity], and the index of its output.
  const int32_t* places = nullptr;
  const int32_t* place_rows = nullptr;
  int64_t num_places = 0;
};

// A part of the outputs of a combine in several parts (expert_parts.h).
struct OutputPart {
  int index = 0;
  Share rows;  // range of the runner's outputs; consecutive parts ascend
};

// The place of a round in a combine of several rounds, the same on every rank. By default each
// round has its own combine.
struct RoundPlace {
  // Index of the round's first token among a rank's tokens of all rounds. A rank with tokens in the
  // round has filled all rounds before it.
  int64_t first_token = 0;
  bool last = true;
};

// State of one batch between BeginDispatch and EndCombine. The dispatcher itself holds none, so
// that any number of batches can be in flight. Owned by the caller that runs the batch. Reusing a
// finished handle reuses its arrays: the steady state allocates nothing.
class DispatchHandle {
 public:
  DispatchLayout layout = DispatchLayout::kStandard;
  const TopK* topk = nullptr;  // routing of the own tokens; owned by the caller
  RoundPlace round;            // set by the caller before InputRows and BeginDispatch

  // The dispatcher's per-batch state, created at first use and kept as long as the handle. Each
  // dispatcher, and each mode of one, has a state type of its own.
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

// Received rows after EndDispatch on the rank of their experts. Views of the handle, of exchange
// buffers and of the caller's x, valid until BeginCombine returns: after that a peer may send its
// next batch.
struct Dispatched {
  DispatchLayout layout = DispatchLayout::kStandard;
  const std::byte* rows = nullptr;  // of `format`
  RowFormat format;
  int64_t num_rows = 0;
  // [num_rows] location of row n: index row_at[n] of `rows`, or row t of own_x if row_at[n] = ~t.
  // Rows of the own tokens are not copied, and not rounded yet. Null: row n is at index n.
  const int32_t* row_at = nullptr;
  const float* own_x = nullptr;  // [own tokens, H]
  // [num_rows] address of row n, in the arena of any rank of this host; null: see row_at.
  const std::byte* const* row_places = nullptr;

  // standard and normal
  const int32_t* topk_ids = nullptr;  // [num_rows, k], row stride topk_stride: local ids, or −1
  int64_t topk_stride = 0;
  int k = 0;

  // low-latency
  int sources = 0;
  int64_t capacity = 0;
  const int32_t* counts = nullptr;     // [sources, E_local] valid places, row stride counts_stride
  const int32_t* place_row = nullptr;  // [E_local, sources, capacity] row index of each valid place
  int64_t counts_stride = 0;
};

}  // namespace switchyard
