// Ops of attention to compressed entries (DeepSeek-V4).
//
// Each `ratio` adjacent positions of a sequence give one entry, a row that is key and value:
//   entry = Σ_j softmax_j(gate_j + bias_j) · row_j, for each element by itself
// With overlapping entries, a position has two rows and two gates. The second ones belong to the
// entry of their own block, the first ones to the entry of the next block. The entry is normed, and
// its last elements are rotated by the first position of its block.
//
// Rows are added one after another to a running softmax (maximum, sum of exponentials, weighted
// sum), which is a recurrent state of the sequence (StateSpan). So bits do not depend on chunks or
// on the batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

#include "core/dtype.h"
#include "core/parallel.h"
#include "kernels/ops.h"
#include "kernels/recurrent.h"

namespace switchyard::kernels {

class PassSequences;  // kernels/device.h

// Adjacent cache slots that share the place of one entry. At most one of them ends a block if the
// page size is a multiple of kEntrySlots.
constexpr int64_t kEntrySlots = 4;
// The largest width of a row and of an entry on GPUs.
constexpr int64_t kMaxGpuEntryWidth = 512;
constexpr int64_t EntrySpan(int64_t ratio) { return std::gcd(ratio, kEntrySlots); }

// Places of entries. The entry whose last position has slot s is at `data` + s / span · stride.
struct EntryPlaces {
  void* data = nullptr;
  int64_t stride = 0;  // bytes
  int64_t span = 1;
  DType dtype = DType::kF32;  // a cache dtype (kernels/cache_rows.h)

  void* Of(int64_t slot) const { return static_cast<std::byte*>(data) + slot / span * stride; }
};

// Number of entries that a query at `position` may attend to.
constexpr int64_t EntriesAt(int64_t position, int64_t ratio) { return (position + 1) / ratio; }

// Floats of the state of an unfinished block. Zeros: no row was added.
constexpr int64_t CompressStateFloats(int64_t width, bool overlaps) {
  return 3 * width * (overlaps ? 2 : 1);
}

struct CompressParams {
  // [m, width], or with `overlaps` [m, 2, width]; row stride ld.
  const float *rows = nullptr, *gates = nullptr;
  int64_t ld = 0;
  const float* bias = nullptr;  // [ratio, ld], added to the gates
  int64_t m = 0, width = 0, ratio = 0;
  bool overlaps = false;
  const int32_t *positions = nullptr, *slots = nullptr;  // [m]
  // Slot s is at states + s · state_stride, CompressStateFloats floats.
  float* states = nullptr;
  int64_t state_stride = 0;
  const StateSpan* sequences = nullptr;  // [num_sequences], in the device's memory
  int64_t num_sequences = 0;
  const float* norm = nullptr;  // [width]
  float eps = 1e-6f;
  // [positions, rotary_dim] as RopeParams::cos_sin; pairs are interleaved.
  const float* cos_sin = nullptr;
  int64_t rotary_dim = 0;
  float* scratch = nullptr;  // [m, width], of CPUs
  EntryPlaces to;
};
void Compress(const CompressParams& p, ThreadPool& pool);

// Selection of entries by an indexer. An index entry k_e is stored beside each entry.
//   score(e) = Σ_h weight_h · max(0, q_h · k_e)
// A row that may attend to more than topk entries selects those with the highest scores; of equal
// scores, the earlier ones. NaN is the lowest score.
struct SelectEntriesParams {
  const float* q = nullptr;  // [m, heads, width], row stride ldq
  int64_t ldq = 0;
  const float* weights = nullptr;  // [m, heads]
  EntryPlaces entries;
  int64_t heads = 0, width = 0, ratio = 0, topk = 0;
  int32_t page_size = 1;
  std::span<const SequenceSpan> sequences;
  // [m, topk] the numbers of the selected entries, ascending. In rows with at most topk entries,
  // CPUs write nothing, and GPUs the numbers of all entries.
  int32_t* selected = nullptr;
};
void SelectEntries(const SelectEntriesParams& p, ThreadPool& pool);

// Attention of all heads to the rows of a sliding window and to entries. A row is key and value.
//   out = Σ_j softmax_j(scale · q · row_j) · row_j, over the sink, the window, then the entries
// The last elements of `out` are rotated back by the position of the query.
struct EntryAttentionParams {
  const float* q = nullptr;  // [m, heads, width], row stride ldq
  int64_t ldq = 0;
  const void* cache = nullptr;  // [slots, width] of `dtype`
  DType dtype = DType::kF32;
  int64_t heads = 0, width = 0;
  int64_t window = 0;                 // position p attends to position j if p − j < window
  EntryPlaces entries;                // with ratio > 0
  int64_t ratio = 0;                  // 0: no entries
  const int32_t* selected = nullptr;  // the result of SelectEntries; null: all entries
  int64_t topk = 0;
  const float* sinks = nullptr;  // [heads] logits without a value; or null
  float scale = 1.0f;
  const float* cos_sin = nullptr;  // as in CompressParams
  int64_t rotary_dim = 0;
  int32_t page_size = 1;
  std::span<const SequenceSpan> sequences;
  float* out = nullptr;  // [m, heads, width], row stride ldo
  int64_t ldo = 0;
};
void AttendToEntries(const EntryAttentionParams& p, ThreadPool& pool);

// Made by a device, for its thread. `sequences` and `page_size` of Params stay empty.
class CompressedOps {
 public:
  virtual ~CompressedOps() = default;
  virtual void Compress(const CompressParams& p) = 0;
  virtual void SelectEntries(const SelectEntriesParams& p, const PassSequences& sequences) = 0;
  virtual void AttendToEntries(const EntryAttentionParams& p, const PassSequences& sequences) = 0;
};

}  // namespace switchyard::kernels
