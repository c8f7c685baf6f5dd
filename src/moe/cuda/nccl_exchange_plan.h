// Where the parts of an exchange over NCCL lie in a rank's own memory. Internal to moe/cuda.
#pragma once

#include <cstdint>

#include "moe/cuda/exchange_launch.h"
#include "moe/cuda/row_exchange.h"

namespace switchyard::cuda {

// What is sent is less than what the network carries while a host waits and the GPU idles after
// that: about 100 µs at 50 GB/s.
constexpr int64_t kNcclSmallBytes = int64_t{5} << 20;

// What goes to one rank of a batch whose longest rank has so many tokens: tags from `counts` to
// `rows`, then the rows, of the layout that a lone source has.
ExchangeLayout LoneLayoutOf(const ExchangeConfig& config, int64_t longest);
inline int64_t TagBytes(const ExchangeLayout& lone) { return lone.rows - lone.counts; }

// Returns of one token from one rank, at most, and from all.
inline int64_t ReturnsFromRank(const ExchangeConfig& c) { return c.sum_by_rank ? 1 : c.top_k; }
inline int64_t ReturnsOfToken(const ExchangeConfig& c) { return c.sum_by_rank ? c.ranks : c.top_k; }

// Of one slot: sizes, and offsets of what lies one after the other.
struct NcclSlotPlan {
  int64_t fixed_tokens;  // batches of up to so many go in messages of fixed size
  int64_t box_bytes;     // what goes to one rank: tags and rows, later returns
  int64_t tag_bytes;     // what comes from one rank of max_tokens
  int64_t boxes, tags;   // [ranks] of these
  int64_t rows;          // [ranks, max_tokens] of row_stride
  int64_t ids, weights;  // [ranks, max_tokens, top_k]
  int64_t first_return;  // [ranks, max_tokens]
  int64_t place;         // [max_tokens, ReturnsOfToken]
  int64_t returned;      // rows of combined_bytes, those of a rank together
  int64_t counts;        // NcclCounts
  int64_t bytes;
};
// Error kInvalid says what a configuration may not have.
NcclSlotPlan NcclPlanOf(const ExchangeConfig& config);

}  // namespace switchyard::cuda
