// A bound on what the rewriting steps of a tokenizer.json may make of a text.
#pragma once

#include <cstddef>

#include "core/error.h"

namespace switchyard {

// Steps that each double a text would fill any memory within a few lines of JSON.
inline constexpr size_t kMaxRewrittenBytes = size_t{64} << 20;

// Throws Error when rewriting makes `after` bytes of `before`, which is more, and past the bound.
inline void CheckRewrittenSize(size_t before, size_t after) {
  if (after <= before || after <= kMaxRewrittenBytes) return;
  throw Invalid("tokenizer.json: its replacements make {} bytes of {}, at most {} are allowed",
                after, before, kMaxRewrittenBytes);
}

}  // namespace switchyard
