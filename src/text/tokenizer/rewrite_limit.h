// Limits the size of a text that a tokenizer.json rewrites.
#pragma once

#include <cstddef>

#include "core/error.h"

namespace switchyard {

// Without this limit, a few lines of JSON could fill the memory with steps that each double the
// text.
inline constexpr size_t kMaxRewrittenBytes = size_t{64} << 20;

// Throws Error if a rewriting step makes a text longer (`before` and `after` in bytes) and `after`
// exceeds the limit.
inline void CheckRewrittenSize(size_t before, size_t after) {
  if (after <= before || after <= kMaxRewrittenBytes) return;
  throw Invalid(
      "tokenizer.json: its replacements expand a text to {} bytes from {}; want at most {}", after,
      before, kMaxRewrittenBytes);
}

}  // namespace switchyard
