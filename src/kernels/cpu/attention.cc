// Drivers of Attention and LatentAttention. A task is a block of query rows, all or part of the
// block's keys, one KV head and some of that head's query heads. attention_partition.h partitions
// the work.
#include <algorithm>
#include <vector>

#include "core/check.h"
#include "kernels/cache_rows.h"
#include "kernels/cpu/attention_partition.h"
#include "kernels/cpu/driver.h"
#include "kernels/ops.h"
#include "kernels/reference.h"

namespace switchyard::kernels {
namespace {

using cpu::AttentionPartition;
using cpu::AttentionTask;
using cpu::RowBlock;

// Sets the row fields of a task.
void Place(const RowBlock& block, int32_t page_size, AttentionTask& t) {
  const SequenceSpan& s = *block.sequence;
  t.rows = block.end - block.begin;
  t.first_position = block.first_position();
  t.pages = s.pages;
  t.page_size = page_size;
  t.branch = s.branch;
  t.branch_begin = s.branch_begin;
  t.q += (s.row_begin + block.begin) * t.ldq;
  t.out += (s.row_begin + block.begin) * t.ldo;
  t.scratch = cpu::ThreadScratch(cpu::AttentionScratch(t.k_width, t.v_width));
  t.part_begin = block.part_begin;
  t.part_end = block.part_end;
  t.partials = nullptr;
}

// Whether to use bfloat16 products of queries and keys. Depends only on properties that all rows of
// a model share, because the results differ from float32.
bool UseBFloat16Products(const cpu::KernelTable& kernels, bool bfloat16_rows, DType cache,
                         int64_t k_width) {
  return bfloat16_rows && kernels.attention_bf16 != nullptr && cache == DType::kBF16 &&
         k_width % 2 == 0;
}

// `make(kv_head, first)` returns a task without rows for some query heads of a KV head, starting
// with head `first` of the group.
template <typename MakeTask>
void RunAttention(const cpu::AttentionWork& work, const cpu::KernelTable& kernels, bool in_pairs,
                  int32_t page_size, ThreadPool& pool, const MakeTask& make) {
  const auto attend = in_pairs ? kernels.attention_bf16 : kernels.attention;
  static thread_local AttentionPartition kept;
  // The calling thread's object, read by the tasks of all threads.
  AttentionPartition& partition = kept;
  cpu::PartitionAttention(work, pool.num_threads(), partition);
  const auto partials = reinterpret_cast<float*>(
      cpu::OpScratch(partition.partial_floats * static_cast<int64_t>(sizeof(float))));
  const auto task_of = [&](const RowBlock& block, int64_t head_task) {
    const int64_t first = head_task % partition.head_parts * partition.heads;
    AttentionTask t = make(head_task / partition.head_parts, first);
    t.group = std::min(partition.heads, work.group - first);
    Place(block, page_size, t);
    if (block.partials >= 0) {
      const int64_t parts = t.part_end - t.part_begin;
      t.partials = partials + block.partials + head_task * parts * partition.partial_stride;
      t.partial_stride = partition.partial_stride;
    }
    return t;
  };
  const int64_t each = partition.tasks_per_block;
  cpu::RunTasks(pool, std::ssize(partition.tasks) * each, [&](int64_t task) {
    const cpu::BlockPart& place = partition.tasks[task / each];
    AttentionTask t = task_of(partition.blocks[place.block], task % each);
    if (t.partials != nullptr) {
      t.part_begin += place.part;
      t.part_end = t.part_begin + 1;
      t.partials += place.part * t.partial_stride;
    }
    attend(t);
  });
  cpu::RunTasks(pool, std::ssize(partition.merges) * each, [&](int64_t task) {
    kernels.merge_attention(task_of(partition.blocks[partition.merges[task / each]], task % each));
  });
}

// Attention to selected keys is attention over a sequence that has only these keys: each row with a
// selection is a sequence of its own, whose slots are those of a branch.
void AttendToSelected(const LatentAttentionParams& p, ThreadPool& pool) {
  static thread_local std::vector<SequenceSpan> spans;
  spans.clear();
  const auto topk = static_cast<int32_t>(p.topk);
  for (const SequenceSpan& s : p.sequences) {
    const int32_t before = s.kv_len - s.rows;                    // keys before the first row
    const int32_t whole = std::clamp(topk - before, 0, s.rows);  // rows that attend to all keys
    if (whole > 0) {
      spans.push_back(s);
      spans.back().rows = whole;
      spans.back().kv_len = before + whole;
    }
    for (int32_t row = s.row_begin + whole; row < s.row_begin + s.rows; ++row)
      spans.push_back(
          {.row_begin = row, .rows = 1, .kv_len = topk, .branch = p.selected + row * p.topk});
  }
  LatentAttentionParams all = p;
  all.selected = nullptr;
  all.sequences = spans;
  LatentAttention(all, pool);
}

}  // namespace

void Attention(const AttentionParams& p, ThreadPool& pool) {
  const cpu::KernelTable* kernels = cpu::ActiveKernels();
  if (kernels == nullptr) return reference::Attention(p);
  CHECK(IsCacheType(p.kv_dtype));
  CHECK((p.k_scales == nullptr && p.v_scales == nullptr) || p.kv_dtype == DType::kF8E4M3);
  CHECK(p.window == 0 || p.chunk == 0);
  const int64_t group = p.heads / p.kv_heads;
  const int64_t v_width = p.value_width();
  const int64_t k_bytes = CacheRowBytes(p.kv_dtype, p.head_dim);
  const int64_t v_bytes = CacheRowBytes(p.kv_dtype, v_width);
  const cpu::AttentionWork work = {.sequences = p.sequences,
                                   .kv_heads = p.kv_heads,
                                   .group = group,
                                   .window = p.window,
                                   .chunk = p.chunk,
                                   .v_width = v_width};
  const bool in_pairs = UseBFloat16Products(*kernels, p.bfloat16_rows, p.kv_dtype, p.head_dim);
  RunAttention(work, *kernels, in_pairs, p.page_size, pool, [&](int64_t kv_head, int64_t first) {
    const int64_t head = kv_head * group + first;
    // The scales of the codes are factors of the scores and of the output.
    const float k_scale = p.k_scales != nullptr ? p.k_scales[kv_head] : 1.0f;
    const float v_scale = p.v_scales != nullptr ? p.v_scales[kv_head] : 1.0f;
    return AttentionTask{
        .q = p.q + head * p.head_dim,
        .ldq = p.ldq,
        .window = p.window,
        .chunk = p.chunk,
        .k = static_cast<const char*>(p.k_cache) + kv_head * k_bytes,
        .v = static_cast<const char*>(p.v_cache) + kv_head * v_bytes,
        .k_stride = p.kv_heads * k_bytes,
        .v_stride = p.kv_heads * v_bytes,
        .k_bytes = k_bytes,
        .v_bytes = v_bytes,
        .k_width = p.head_dim,
        .v_width = v_width,
        .v_in_k = false,
        .dtype = p.kv_dtype,
        .scale = p.scale * k_scale,
        .value_scale = p.value_scale * v_scale,
        .sinks = p.sinks != nullptr ? p.sinks + head : nullptr,
        .out = p.out + head * v_width,
        .ldo = p.ldo,
    };
  });
}

void LatentAttention(const LatentAttentionParams& p, ThreadPool& pool) {
  if (p.selected != nullptr) return AttendToSelected(p, pool);
  const cpu::KernelTable* kernels = cpu::ActiveKernels();
  if (kernels == nullptr) return reference::LatentAttention(p);
  CHECK(IsCacheType(p.kv_dtype));
  CHECK(p.cache_scale == nullptr || p.kv_dtype == DType::kF8E4M3);
  const float cache_scale = p.cache_scale != nullptr ? *p.cache_scale : 1.0f;
  const int64_t width = p.lora + p.rope;
  const int64_t row_bytes = CacheRowBytes(p.kv_dtype, width);
  const cpu::AttentionWork work = {
      .sequences = p.sequences, .kv_heads = 1, .group = p.heads, .v_width = p.lora};
  const bool in_pairs = UseBFloat16Products(*kernels, p.bfloat16_rows, p.kv_dtype, width);
  RunAttention(work, *kernels, in_pairs, p.page_size, pool, [&](int64_t, int64_t head) {
    return AttentionTask{
        .q = p.q + head * width,
        .ldq = p.ldq,
        .window = 0,
        .chunk = 0,
        .k = p.cache,
        .v = p.cache,
        .k_stride = row_bytes,
        .v_stride = row_bytes,
        .k_bytes = row_bytes,
        .v_bytes = row_bytes,
        .k_width = width,
        .v_width = p.lora,
        .v_in_k = true,
        .dtype = p.kv_dtype,
        .scale = p.scale * cache_scale,
        .value_scale = cache_scale,
        .sinks = nullptr,
        .out = p.out + head * p.lora,
        .ldo = p.ldo,
    };
  });
}

}  // namespace switchyard::kernels
