// Attention and LatentAttention: tasks are (sequence, block of query rows, KV head, part of its
// query heads).
#include <algorithm>
#include <vector>

#include "core/check.h"
#include "kernels/cache_rows.h"
#include "kernels/cpu/driver.h"
#include "kernels/ops.h"
#include "kernels/reference.h"

namespace switchyard::kernels {
namespace {

// Some query rows of one sequence.
struct RowBlock {
  const SequenceSpan* sequence;
  int32_t begin, end;
};

// How a call is cut: `parts` parts of at most `heads` query heads for each KV head.
struct Cut {
  const std::vector<RowBlock>& blocks;
  int64_t heads, parts;
};

Cut CutSequences(std::span<const SequenceSpan> sequences, int64_t kv_heads, int64_t group,
                 int threads) {
  static thread_local std::vector<RowBlock> blocks;
  blocks.clear();
  int64_t heads = std::min(group, cpu::kQueryBlock);
  int64_t rows = 0;
  for (const SequenceSpan& s : sequences) rows += s.rows;
  // With less work than threads, heads that share keys part; else they share what they load.
  if (rows * kv_heads < threads) {
    heads = std::min(heads, CeilDiv(group * rows * kv_heads, threads));
  }
  heads = std::max<int64_t>(heads, 1);
  const auto block_rows = static_cast<int32_t>(cpu::kQueryBlock / heads);
  for (const SequenceSpan& s : sequences) {
    for (int32_t r = 0; r < s.rows; r += block_rows) {
      blocks.push_back({&s, r, std::min(s.rows, r + block_rows)});
    }
  }
  return {blocks, heads, CeilDiv(group, heads)};
}

// Fills in a task's place in the batch.
void Place(const RowBlock& block, int32_t page_size, cpu::AttentionTask& t) {
  const SequenceSpan& s = *block.sequence;
  t.rows = block.end - block.begin;
  t.first_position = s.kv_len - s.rows + block.begin;
  t.pages = s.pages;
  t.page_size = page_size;
  t.q += (s.row_begin + block.begin) * t.ldq;
  t.out += (s.row_begin + block.begin) * t.ldo;
  t.scratch = cpu::ThreadScratch(cpu::AttentionScratch(t.k_width, t.v_width));
}

}  // namespace

void Attention(const AttentionParams& p, ThreadPool& pool) {
  const cpu::Leaves* leaves = cpu::ActiveLeaves();
  if (leaves == nullptr) return reference::Attention(p);
  CHECK(IsCacheType(p.kv_dtype));
  const int64_t group = p.heads / p.kv_heads;
  const Cut cut = CutSequences(p.sequences, p.kv_heads, group, pool.num_threads());
  const int64_t tasks_per_block = p.kv_heads * cut.parts;
  const int64_t row_bytes = CacheRowBytes(p.kv_dtype, p.head_dim);
  const auto tasks = static_cast<int64_t>(cut.blocks.size()) * tasks_per_block;
  cpu::RunTasks(pool, tasks, [&](int64_t task) {
    const int64_t kv_head = task % tasks_per_block / cut.parts;
    const int64_t first = task % cut.parts * cut.heads;  // within the group
    const int64_t head = kv_head * group + first;
    cpu::AttentionTask t = {
        .q = p.q + head * p.head_dim,
        .ldq = p.ldq,
        .group = std::min(cut.heads, group - first),
        .window = p.window,
        .k = static_cast<const char*>(p.k_cache) + kv_head * row_bytes,
        .v = static_cast<const char*>(p.v_cache) + kv_head * row_bytes,
        .key_stride = p.kv_heads * row_bytes,
        .k_bytes = row_bytes,
        .v_bytes = row_bytes,
        .k_width = p.head_dim,
        .v_width = p.head_dim,
        .v_in_k = false,
        .dtype = p.kv_dtype,
        .scale = p.scale,
        .sinks = p.sinks != nullptr ? p.sinks + head : nullptr,
        .out = p.out + head * p.head_dim,
        .ldo = p.ldo,
    };
    Place(cut.blocks[task / tasks_per_block], p.page_size, t);
    leaves->attention(t);
  });
}

void LatentAttention(const LatentAttentionParams& p, ThreadPool& pool) {
  const cpu::Leaves* leaves = cpu::ActiveLeaves();
  if (leaves == nullptr) return reference::LatentAttention(p);
  CHECK(IsCacheType(p.kv_dtype));
  const int64_t width = p.lora + p.rope;
  const int64_t row_bytes = CacheRowBytes(p.kv_dtype, width);
  const Cut cut = CutSequences(p.sequences, 1, p.heads, pool.num_threads());
  const auto tasks = static_cast<int64_t>(cut.blocks.size()) * cut.parts;
  cpu::RunTasks(pool, tasks, [&](int64_t task) {
    const int64_t head = task % cut.parts * cut.heads;
    cpu::AttentionTask t = {
        .q = p.q + head * width,
        .ldq = p.ldq,
        .group = std::min(cut.heads, p.heads - head),
        .window = 0,
        .k = p.cache,
        .v = p.cache,
        .key_stride = row_bytes,
        .k_bytes = row_bytes,
        .v_bytes = row_bytes,
        .k_width = width,
        .v_width = p.lora,
        .v_in_k = true,
        .dtype = p.kv_dtype,
        .scale = p.scale,
        .sinks = nullptr,
        .out = p.out + head * p.lora,
        .ldo = p.ldo,
    };
    Place(cut.blocks[task / cut.parts], p.page_size, t);
    leaves->attention(t);
  });
}

}  // namespace switchyard::kernels
