// Attention over a paged KV cache on a GPU. Semantics: kernels/ops.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/device/launch.h"
#include "kernels/ops.h"

namespace switchyard::cuda {

// A batch's sequence table in device memory.

// The table that PassSequences::Set uploads; kernels::SequenceSpan documents the columns. The
// arrays have fixed addresses, so a captured graph reads the latest upload. A launch may depend on
// num_sequences, num_rows and max_pages, which are part of the graph's key, but never on KV
// lengths. Empty sequences (rows 0) are allowed.
struct SequenceTable {
  static constexpr int32_t kBranchHeader = 2;  // elements of a row of `branches` before the slots

  const int32_t* row_begin = nullptr;  // [num_sequences]
  const int32_t* rows = nullptr;       // [num_sequences]
  const int32_t* kv_len = nullptr;     // [num_sequences]
  // [page tables, max_pages]; 0 after the last page. Without branches, the page table of a sequence
  // has its number.
  const int32_t* pages = nullptr;
  const int32_t* row_sequence = nullptr;  // [num_rows]; −1: a row of no sequence
  // [num_sequences, branch_stride] for each sequence, SequenceSpan::branch_begin (INT32_MAX: it has
  // no branch), the number of its page table, then SequenceSpan::branch. Null: no batch has
  // branches.
  const int32_t* branches = nullptr;
  int32_t num_sequences = 0;
  int32_t num_rows = 0;  // end of the last sequence's rows
  int32_t max_pages =
      0;  // stride of `pages`, CudaDeviceOptions::max_pages: the same in all batches
  int32_t page_size = 1;
  int32_t branch_stride = 0;  // kBranchHeader + CudaDeviceOptions::max_branch
  // Host-side facts about this batch. Captured launches must not depend on them unless they are
  // part of the graph's key.
  int32_t max_rows = 0;    // largest number of rows of a sequence
  int32_t max_kv_len = 0;  // largest KV length
};

// Recommended size of `scratch` below; one buffer per stream.
constexpr size_t kAttentionScratchBytes = size_t{256} << 20;

// Enqueues the kernels and returns. Ignores `sequences` and `page_size` of `p`, because `table` has
// them. Rows that belong to no sequence are not written.
//
// `exact`: float32 products of unrounded inputs. Otherwise tensor cores are used if the cache is
// kBF16 or kF8E4M3 and the head size is supported (64, 128 and 256; keys of 192 with values of 128;
// latent 512 + 64). Codes are converted to bfloat16 exactly, and their scales are factors of scores
// and outputs. So with scales of 1, bits are those of a kBF16 cache with the same values. q and the
// probabilities are then rounded to bfloat16, and q, out and both caches must be aligned to 16
// bytes.
//
// `scratch`: device memory for partial results of long sequences, aligned to 16 bytes. If it is too
// small, one block processes all keys of a query: the same bits, more slowly.
//
// With LatentAttentionParams::selected, which SelectKeys has filled (select_keys.h), each row is a
// sequence of its own. `scratch` then also has SelectedSequencesBytes(table.num_rows) bytes for
// their table.
//
// A row's bits depend only on `exact`, its own query, keys and position. With tensor cores, keys
// are cut at fixed positions into splits, and splits into blocks of 64 keys. Results of splits are
// merged in order, whichever block computes them. Scales are positive, also those of codes.
void Attention(const kernels::AttentionParams& p, const SequenceTable& table, bool exact,
               const PdlStream& chain, std::span<std::byte> scratch = {});
void LatentAttention(const kernels::LatentAttentionParams& p, const SequenceTable& table,
                     bool exact, const PdlStream& chain, std::span<std::byte> scratch = {});
// Whether Attention reads `bf16_queries` and writes `bf16_out` for these sizes and this device.
bool AttentionToBFloat16(const kernels::AttentionParams& p, bool exact);

}  // namespace switchyard::cuda
