// Recurrent states in memory, and copies between ranks of different layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/range.h"
#include "engine/kv_transfer/kv_mover.h"
#include "model/config.h"

namespace switchyard {

// The states of a model: of linear attention, sharded by key heads, or of unfinished blocks of
// compressed attention, which have one part and are the same on all ranks of an attention group.
struct KvStateFormat {
  std::optional<LinearAttentionConfig> linear;
  int64_t whole_floats = 0;  // of a state of unfinished blocks; 0: none

  bool any() const { return linear || whole_floats > 0; }
  int64_t heads() const { return linear ? linear->key_heads : 1; }
  // Bytes of a key head's part of a state: the inputs of its channels, and its value heads. Of
  // unfinished blocks: of the state.
  int64_t HeadBytes() const;
  int64_t Bytes() const { return heads() * HeadBytes(); }
};

// The state of one layer as one rank holds it in a slot (StateStorage), or as a buffer holds it.
struct KvStateShard {
  float* inputs = nullptr;  // of the convolution [conv_width − 1, mixed row] (LinearLayout), or all
  float* heads = nullptr;  // [value heads, key_dim, value_dim]; not used with whole_floats
  Range key_heads;         // of the model
};

// Copies a state to all shards of another one. `from`: every key head is in one of them. `mover`:
// as in CopyKvRows.
void CopyKvState(const KvStateFormat& format, std::span<const KvStateShard> from,
                 std::span<const KvStateShard> to, KvMover* mover = nullptr);

// A state in the canonical order, which is that of a rank with all heads. Borrows the memory, of at
// least format.Bytes(), at a multiple of 4.
KvStateShard CanonicalState(const KvStateFormat& format, std::span<std::byte> memory);

}  // namespace switchyard
