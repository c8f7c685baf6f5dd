// Buffer layout of an NCCL exchange in a rank's own memory. Internal to moe/cuda.
#pragma once

#include <cstdint>

#include "moe/cuda/dispatchers/exchange_launch.h"
#include "moe/cuda/dispatchers/row_exchange.h"

namespace switchyard::cuda {

// Size in bytes below which fixed messages are cheaper than a host wait and the GPU idle time after
// it. A wait costs about 100 µs, in which 5 MiB are sent at 50 GB/s.
constexpr int64_t kNcclSmallBytes = int64_t{5} << 20;

// Layout of the message to one rank, in a batch whose longest rank has `longest` tokens. The
// message has the metadata, which is the range from `counts` to `rows`, and then the rows. The
// offsets are those of an ExchangeLayout with a single source.
ExchangeLayout SingleSourceLayoutOf(const ExchangeConfig& config, int64_t longest);
inline int64_t TagBytes(const ExchangeLayout& lone) { return lone.rows - lone.counts; }

// Maximum number of returns of one token: from one rank, and from all ranks together.
inline int64_t ReturnsFromRank(const ExchangeConfig& c) { return c.sum_by_rank ? 1 : c.top_k; }
inline int64_t ReturnsOfToken(const ExchangeConfig& c) { return c.sum_by_rank ? c.ranks : c.top_k; }

// Sizes and offsets in bytes of the consecutive buffers of one slot.
struct NcclSlotPlan {
  int64_t fixed_tokens;       // maximum tokens of a batch in fixed mode
  int64_t send_buffer_bytes;  // size of a send buffer: metadata and rows, later returns
  int64_t tag_bytes;          // size of the metadata received from one rank, for max_tokens tokens
  int64_t boxes, tags;        // [ranks] send buffers; [ranks] buffers of received metadata
  int64_t rows;               // [ranks, max_tokens] received rows of row_stride bytes
  int64_t ids, weights;       // [ranks, max_tokens, top_k]
  int64_t first_return;       // [ranks, max_tokens]
  int64_t place;              // [max_tokens, ReturnsOfToken]
  int64_t returned;           // returned rows of combined_bytes bytes, grouped by rank
  int64_t counts;             // one NcclCounts
  int64_t bytes;
};
// Error kInvalid names the unsupported parameter.
NcclSlotPlan NcclPlanOf(const ExchangeConfig& config);

}  // namespace switchyard::cuda
