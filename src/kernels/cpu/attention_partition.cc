#include "kernels/cpu/attention_partition.h"

#include <algorithm>

#include "kernels/cpu/driver.h"
#include "kernels/cpu/heuristics.h"

namespace switchyard::kernels::cpu {
namespace {

// First and last key that the rows of a block attend to.
struct Keys {
  int64_t first, last;
  int64_t parts() const { return last / kKeyPart - first / kKeyPart + 1; }
};

Keys KeysOf(const SequenceSpan& s, int64_t begin, int64_t end, const AttentionWork& work) {
  const int64_t position = s.kv_len - s.rows + begin;
  int64_t first = 0;
  if (work.window > 0) first = std::max<int64_t>(0, position - work.window + 1);
  if (work.chunk > 0) first = position / work.chunk * work.chunk;
  return {first, int64_t{s.kv_len} - s.rows + end - 1};
}

// Number of query-key products of one query head in the last `rows` rows of a sequence.
int64_t WorkOf(const SequenceSpan& s, int64_t rows, const AttentionWork& work) {
  const Keys keys = KeysOf(s, s.rows - rows, s.rows, work);
  return rows * (keys.last - keys.first + 1);
}

}  // namespace

void PartitionAttention(const AttentionWork& work, int threads, AttentionPartition& partition) {
  partition.blocks.clear();
  partition.tasks.clear();
  partition.merges.clear();
  partition.heads = std::max<int64_t>(1, std::min(work.group, kQueryBlock));
  const auto block_rows = static_cast<int32_t>(kQueryBlock / partition.heads);
  int64_t total = 0;
  for (const SequenceSpan& s : work.sequences) {
    total += work.kv_heads * work.group * WorkOf(s, s.rows, work);
  }

  int64_t partial_parts = 0, tasks = 0;
  for (const SequenceSpan& s : work.sequences) {
    const int64_t largest = partition.heads * WorkOf(s, std::min(s.rows, block_rows), work);
    const bool large = threads > 1 && largest * kKeyPartTasks * threads > total;
    for (int32_t r = 0; r < s.rows; r += block_rows) {
      const int32_t end = std::min(s.rows, r + block_rows);
      const Keys keys = KeysOf(s, r, end, work);
      const bool split = large && keys.parts() > 1;
      partition.blocks.push_back({.sequence = &s,
                                  .begin = r,
                                  .end = end,
                                  .part_begin = keys.first / kKeyPart,
                                  .part_end = keys.last / kKeyPart + 1,
                                  .partials = split ? partial_parts : -1});
      if (split) partial_parts += keys.parts();
      tasks += split ? keys.parts() : 1;
    }
  }
  // With fewer tasks than threads, the heads of a group are split over tasks. Otherwise a task has
  // up to kQueryBlock heads of a group, which then share the loads of keys.
  if (tasks > 0 && tasks * work.kv_heads < threads) {
    partition.heads =
        std::min(partition.heads, CeilDiv(work.group * tasks * work.kv_heads, threads));
  }
  partition.head_parts = CeilDiv(work.group, partition.heads);
  partition.tasks_per_block = work.kv_heads * partition.head_parts;
  partition.partial_stride = PartialFloats(block_rows * partition.heads, work.v_width);
  partition.partial_floats = partial_parts * partition.tasks_per_block * partition.partial_stride;
  const bool too_large = partition.partial_floats > kMaxPartialFloats;
  if (too_large) partition.partial_floats = 0;
  for (int32_t b = 0; b < std::ssize(partition.blocks); ++b) {
    RowBlock& block = partition.blocks[b];
    if (too_large) block.partials = -1;
    const int64_t parts = block.partials < 0 ? 1 : block.part_end - block.part_begin;
    for (int32_t part = 0; part < parts; ++part) partition.tasks.push_back({b, part});
    if (block.partials < 0) continue;
    block.partials *= partition.tasks_per_block * partition.partial_stride;
    partition.merges.push_back(b);
  }
}

}  // namespace switchyard::kernels::cpu
