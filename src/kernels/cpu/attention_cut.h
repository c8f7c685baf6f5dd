// How a call of attention is cut into tasks: blocks of query rows, query heads that share a KV
// head, and where that is too little for all threads, parts of the keys. No cut changes a bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace switchyard::kernels::cpu {

// What is cut.
struct AttentionWork {
  std::span<const SequenceSpan> sequences;
  int64_t kv_heads = 1;
  int64_t group = 1;   // query heads of a KV head
  int64_t window = 0;  // 0: all keys
  int64_t v_width = 0;
};

// Some query rows of one sequence, and the parts of kKeyPart keys that they see.
struct RowBlock {
  const SequenceSpan* sequence;
  int32_t begin, end;
  int64_t part_begin, part_end;
  int64_t partials;  // −1: one task visits all parts; else where in the partials its sums begin

  int64_t first_position() const { return sequence->kv_len - sequence->rows + begin; }
};

// A task's place: all parts of its block, or one.
struct BlockPart {
  int32_t block;
  int32_t part;  // from the block's first one
};

// For each KV head and each of the `head_parts` parts of its query heads, of at most `heads` each,
// there is a task of every entry of `tasks`, then one that merges every entry of `merges`.
struct AttentionCut {
  std::vector<RowBlock> blocks;
  std::vector<BlockPart> tasks;
  std::vector<int32_t> merges;  // blocks whose parts are tasks
  int64_t heads = 1, head_parts = 1;
  int64_t partial_stride = 0;  // floats of a part's sums
  int64_t partial_floats = 0;  // of all parts of the call

  int64_t tasks_per_block = 1;  // kv_heads · head_parts
};

// Fills in `cut`, whose memory is kept from call to call.
void CutAttention(const AttentionWork& work, int threads, AttentionCut& cut);

}  // namespace switchyard::kernels::cpu
