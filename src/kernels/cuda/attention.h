// Attention over a paged KV cache on a GPU. Semantics: kernels/ops.h.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/cuda/sequence_table.h"
#include "kernels/cuda/stream_chain.h"
#include "kernels/ops.h"

namespace switchyard::cuda {

// Recommended size of `scratch` below; one buffer per stream.
constexpr size_t kAttentionScratchBytes = size_t{256} << 20;

// Enqueues the kernels and returns. Ignores `sequences` and `page_size` of `p`, because `table` has
// them. Rows that belong to no sequence are not written.
//
// `exact`: float32 products of unrounded inputs. Otherwise tensor cores are used if the cache is
// kBF16 and the head size is supported (64 and 128; latent 512 + 64). q and the probabilities are
// then rounded to bfloat16, and q, out and both caches must be aligned to 16 bytes.
//
// `scratch`: device memory for partial results of long sequences, aligned to 16 bytes. If it is too
// small, one block processes all keys of a query: the same bits, more slowly.
//
// A row's bits depend only on `exact`, its own query, keys and position. With tensor cores, keys
// are cut at fixed positions into splits, and splits into blocks of 64 keys. Results of splits are
// merged in order, whichever block computes them. Scales are positive.
void Attention(const kernels::AttentionParams& p, const SequenceTable& table, bool exact,
               const PdlStream& chain, std::span<std::byte> scratch = {});
void LatentAttention(const kernels::LatentAttentionParams& p, const SequenceTable& table,
                     bool exact, const PdlStream& chain, std::span<std::byte> scratch = {});
// Whether Attention reads `bf16_queries` and writes `bf16_out` for these sizes and this device.
bool AttentionToBFloat16(const kernels::AttentionParams& p, bool exact);

}  // namespace switchyard::cuda
