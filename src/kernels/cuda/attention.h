// Attention over a paged cache on a GPU. Semantics: kernels/ops.h.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/cuda/sequence_table.h"
#include "kernels/cuda/stream_chain.h"
#include "kernels/ops.h"

namespace switchyard::cuda {

// What a device should set aside for `scratch` below; one for each stream.
constexpr size_t kAttentionScratchBytes = size_t{256} << 20;

// Enqueue. `sequences` and `page_size` of the params are not looked at: the table has
// them. Rows of no sequence are left alone.
//
// `exact`: float32 products of unrounded inputs; else matrix units are used, on q and
// probabilities rounded to bfloat16, where the cache is kBF16 and the head size is one they are
// written for (64 and 128; 512 + 64 latent): then q, out and both caches are aligned to 16 bytes.
//
// `scratch`: device memory, aligned to 16 bytes, for partial results of long sequences. Where it
// does not suffice, one block goes through all keys of a query: the same bits, more slowly.
//
// A row's bits depend on `exact`, its own query, keys and position alone. With matrix units keys
// are cut at fixed positions into splits, those into blocks of 64, and results of splits are folded
// in order, by whoever computes them. Scales are positive.
void Attention(const kernels::AttentionParams& p, const SequenceTable& table, bool exact,
               const StreamChain& chain, std::span<std::byte> scratch = {});
void LatentAttention(const kernels::LatentAttentionParams& p, const SequenceTable& table,
                     bool exact, const StreamChain& chain, std::span<std::byte> scratch = {});

}  // namespace switchyard::cuda
