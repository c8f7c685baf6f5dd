// What travels between the stages of the MoE path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "moe/router.h"
#include "moe/rows.h"

namespace switchyard {

// How dispatched rows lie on the rank that owns their experts.
enum class DispatchLayout : uint8_t {
  kStandard,    // every row of the group, each once
  kNormal,      // one row per (token, destination rank), source rank by source rank
  kLowLatency,  // the same, and for each expert its rows, named in [E_local, sources, capacity]
};

// How a runner wants the rows of its experts.
enum class RunnerLayout : uint8_t {
  kContiguous,  // expert after expert, exact counts, delimited by offsets [E_local + 1]
  kMasked,      // [E_local, capacity, H] of which the first counts[e] rows are valid
};

std::string_view Name(DispatchLayout layout);
std::string_view Name(RunnerLayout layout);

// Items [begin, end) of a sequence.
struct Share {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
// Part `part` of `total` items cut into `parts` runs whose lengths differ by at most one, the
// longer ones first. Experts are spread over EP ranks this way, and tokens too.
Share EvenShare(int64_t total, int64_t parts, int64_t part);

// Outputs of the experts on the way back, and which dispatched row each belongs to.
struct ExpertRows {
  // [num_rows, H]; null where they were left in the places that the dispatcher gave
  // (Dispatcher::OutputPlaces), or where there are none yet.
  const float* rows = nullptr;
  int64_t num_rows = 0;  // masked runners leave rows between the valid ones
  // standard and normal: [dispatched rows, k] the output for slot j of row n, or −1.
  const int32_t* position = nullptr;
  // low-latency: [num_places] a place in [E_local, sources, capacity], and the output for it.
  const int32_t* places = nullptr;
  const int32_t* place_rows = nullptr;
  int64_t num_places = 0;
};

// One batch between BeginDispatch and EndCombine: everything a dispatcher must remember of it, so
// that any number of batches are in flight and none is the dispatcher's "current" one. Owned by
// whoever runs the batch. Reusing a finished handle for the next batch reuses its arrays, and a
// steady state allocates nothing.
class DispatchHandle {
 public:
  DispatchLayout layout = DispatchLayout::kStandard;
  const TopK* topk = nullptr;  // of the own tokens; the caller's

  // The dispatcher's own record of the batch, made at first use and kept for the handle's life.
  // Each dispatcher, and each mode of one, has a type of its own.
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

// Rows as EndDispatch leaves them on the rank of their experts. Views of the handle, of exchange
// buffers and of the caller's x, valid until BeginCombine returns: from then on a peer may send its
// next batch.
struct Dispatched {
  DispatchLayout layout = DispatchLayout::kStandard;
  const std::byte* rows = nullptr;  // of `format`
  RowFormat format;
  int64_t num_rows = 0;
  // [num_rows] where row n lies: at index row_at[n] of `rows`, or, for row_at[n] = ~t, at row t of
  // own_x: rows of the own tokens are not moved, and not rounded yet. Null: row n lies at n.
  const int32_t* row_at = nullptr;
  const float* own_x = nullptr;  // [own tokens, H]
  // [num_rows] where row n lies, in the arena of whichever rank of this host; null: as above.
  const std::byte* const* row_places = nullptr;

  // standard and normal
  const int32_t* topk_ids = nullptr;  // [num_rows, k], row stride topk_stride: local ids, or −1
  int64_t topk_stride = 0;
  int k = 0;

  // low-latency
  int sources = 0;
  int64_t capacity = 0;
  const int32_t* counts = nullptr;     // [sources, E_local] places in use, row stride counts_stride
  const int32_t* place_row = nullptr;  // [E_local, sources, capacity] the row for each place in use
  int64_t counts_stride = 0;
};

}  // namespace switchyard
