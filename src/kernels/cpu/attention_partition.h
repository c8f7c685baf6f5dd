// Work partition of an attention call: blocks of query rows, and query heads that share a KV head.
// If these are too few for all threads, the keys are divided into parts too (split-KV). The
// partition never changes a bit of the result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace switchyard::kernels::cpu {

// The attention call to partition.
struct AttentionWork {
  std::span<const SequenceSpan> sequences;
  int64_t kv_heads = 1;
  int64_t group = 1;   // query heads per KV head
  int64_t window = 0;  // 0: all keys
  int64_t chunk = 0;   // 0: no chunks
  int64_t v_width = 0;
};

// Some query rows of one sequence, and the range of key parts (kKeyPart keys each) they attend to.
struct RowBlock {
  const SequenceSpan* sequence;
  int32_t begin, end;
  int64_t part_begin, part_end;
  int64_t partials;  // −1: one task for all parts; else offset of its partial sums

  int64_t first_position() const { return sequence->kv_len - sequence->rows + begin; }
};

// A work item: all parts of a block, or one of them.
struct BlockPart {
  int32_t block;
  int32_t part;  // relative to the block's first part
};

// Each KV head has `head_parts` groups of at most `heads` query heads. For each group, every entry
// of `tasks` is one task, followed by one merge task per entry of `merges`.
struct AttentionPartition {
  std::vector<RowBlock> blocks;
  std::vector<BlockPart> tasks;
  std::vector<int32_t> merges;  // blocks whose parts are separate tasks
  int64_t heads = 1, head_parts = 1;
  int64_t partial_stride = 0;  // floats of one part's sums
  int64_t partial_floats = 0;  // floats of all parts of the call

  int64_t tasks_per_block = 1;  // kv_heads · head_parts
};

// Fills in `partition`, whose memory is reused across calls.
void PartitionAttention(const AttentionWork& work, int threads, AttentionPartition& partition);

}  // namespace switchyard::kernels::cpu
