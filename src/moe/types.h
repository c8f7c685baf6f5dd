// What travels between the stages of the MoE path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "moe/router.h"

namespace switchyard {

// How dispatched rows lie on the rank that owns their experts.
enum class DispatchLayout : uint8_t {
  kStandard,    // nothing moved: every rank has every token's row
  kNormal,      // one row per (token, destination rank), packed, source rank by source rank
  kLowLatency,  // one row per (token, expert) in [E_local, sources, capacity], fixed places
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
  float* rows = nullptr;  // [num_rows, H]; the dispatcher may round them in place
  int64_t num_rows = 0;
  // standard and normal: [dispatched rows, k] the output for slot j of row n, or −1.
  const int32_t* position = nullptr;
  // low-latency: [num_rows] the place in [E_local, sources, capacity] that each output is for.
  const int32_t* places = nullptr;
};

// One batch between BeginDispatch and EndCombine: everything a dispatcher must remember of it, so
// that any number of batches are in flight and none is the dispatcher's "current" one. A value
// owned by whoever runs the batch. Reusing a finished handle for the next batch reuses its arrays,
// and a steady state allocates nothing. P = ranks that exchange rows, n = own tokens.
struct DispatchHandle {
  DispatchLayout layout = DispatchLayout::kStandard;
  const TopK* topk = nullptr;  // of the own tokens; the caller's
  int slot = -1;               // buffer slot of the exchange; −1: none taken
  uint32_t round = 0;          // value of the slot's flags in this use of it

  // standard
  const float* x = nullptr;        // [n, H] rows as they will be computed: the caller's, or
  std::vector<float> rounded;      // [n, H] a copy rounded to the dtype in flight
  std::vector<int32_t> local_ids;  // [n, k] −1 for experts of other ranks
  ExpertRows outputs;

  // normal and low-latency
  // Index of the token's row among those that this rank sends to that rank (normal, [n, P]) or to
  // that slot's expert (low-latency, [n, k]); −1: none goes there.
  std::vector<int32_t> send_order;
  std::vector<int32_t> send_counts;  // [P] rows to each rank, or [E] to each expert

  // normal
  std::vector<int32_t> send_begin;     // [P] place of this rank's first row at each rank
  std::vector<int32_t> receive_begin;  // [P + 1] rows [begin[s], begin[s + 1]) are from source s
};

// Rows as EndDispatch leaves them on the rank of their experts. Views of the handle and of exchange
// buffers, valid until BeginCombine returns: from then on a peer may send its next batch.
struct Dispatched {
  DispatchLayout layout = DispatchLayout::kStandard;
  const std::byte* rows = nullptr;  // [num_rows, H], or [E_local, sources, capacity, H]
  DType dtype = DType::kF32;        // of rows

  // standard and normal
  int64_t num_rows = 0;
  const int32_t* topk_ids = nullptr;  // [num_rows, k], row stride topk_stride: local ids, or −1
  int64_t topk_stride = 0;
  int k = 0;

  // low-latency
  int sources = 0;
  int64_t capacity = 0;
  const int32_t* counts = nullptr;  // [sources, E_local], row stride counts_stride
  int64_t counts_stride = 0;
};

}  // namespace switchyard
