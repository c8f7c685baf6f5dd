// Recurrent states in memory, and copies between ranks of different layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/range.h"
#include "model/config.h"

namespace switchyard {

// The state of one layer as one rank holds it in a slot (StateStorage), or as a buffer holds it.
struct KvStateShard {
  float* inputs = nullptr;  // of the convolution [conv_width − 1, mixed row] (LinearLayout)
  float* heads = nullptr;   // [value heads, key_dim, value_dim]
  Range key_heads;          // of the model
};

// Bytes of a key head's part of a state: the inputs of its channels, and its value heads.
int64_t KvStateBytes(const LinearAttentionConfig& config);

// Copies a state to all shards of another one. `from`: every key head is in one of them.
void CopyKvState(const LinearAttentionConfig& config, std::span<const KvStateShard> from,
                 std::span<const KvStateShard> to);

// A state in the canonical order, which is that of a rank with all heads. Borrows the memory, of at
// least KvStateBytes for each key head, at a multiple of 4.
KvStateShard CanonicalState(const LinearAttentionConfig& config, std::span<std::byte> memory);

}  // namespace switchyard
