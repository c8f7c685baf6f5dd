#include "moe/cuda/dispatchers/exchange_layout.h"

#include <vector>

#include "core/check.h"
#include "core/error.h"
#include "quant/formats.h"
#include "quant/fp8.h"

namespace switchyard::cuda {
namespace {

void Validate(const ExchangeConfig& c) {
  if (c.ranks < 1 || c.ranks > kMaxExchangeRanks || c.rank < 0 || c.rank >= c.ranks)
    throw Invalid("exchange on GPUs: rank {} of {} ranks, want at most {}", c.rank, c.ranks,
                  kMaxExchangeRanks);
  if (c.top_k < 1 || c.top_k > kMaxExchangeTopK)
    throw Invalid("exchange on GPUs: {} experts per token, want at most {}", c.top_k,
                  kMaxExchangeTopK);
  // Number of row elements that a lane stores at once: 16 bytes of dispatched or combined rows.
  const int64_t vector = c.dispatched.fp8 ? 16 : 8;
  if (c.hidden < 1 || c.hidden % vector != 0)
    throw Invalid("exchange on GPUs: rows of {} elements, want a multiple of {}", c.hidden, vector);
  constexpr int64_t kMaxRows = int64_t{1} << 24, kMaxTokensOfFew = 4096;
  if (c.max_tokens < 1 || c.max_tokens * c.ranks * c.top_k > kMaxRows)
    throw Invalid("exchange on GPUs: {} tokens x {} ranks x {} slots, want at most {}",
                  c.max_tokens, c.ranks, c.top_k, kMaxRows);
  if (c.low_latency && c.max_tokens > kMaxTokensOfFew)
    throw Invalid("exchange on GPUs: {} tokens in low-latency mode, want at most {}", c.max_tokens,
                  kMaxTokensOfFew);
  if (!c.dispatched.fp8 && c.dispatched.dtype != DType::kF32 && c.dispatched.dtype != DType::kBF16)
    throw Invalid("exchange on GPUs: rows of {}, want float32, bfloat16 or FP8",
                  Name(c.dispatched.dtype));
  if (c.combined != DType::kF32 && c.combined != DType::kBF16)
    throw Invalid("exchange on GPUs: returned rows of {}, want float32 or bfloat16",
                  Name(c.combined));
  if (c.in_flight < 1)
    throw Invalid("exchange on GPUs: {} batches in flight, want at least 1", c.in_flight);
}

}  // namespace

RowKind RowKindOf(RowFormat format) {
  if (format.fp8) return RowKind::kFp8;
  return format.dtype == DType::kF32 ? RowKind::kF32 : RowKind::kBF16;
}

ExchangeLayout LayoutOf(const ExchangeConfig& c) {
  Validate(c);
  ExchangeLayout layout = {};
  layout.row_stride = RoundUp(c.dispatched.Bytes(c.hidden), kRowAlignment);
  layout.scale_offset = c.dispatched.fp8 ? c.hidden : 0;
  layout.combined_bytes = c.hidden * static_cast<int64_t>(SizeOf(c.combined));
  const int64_t rows = c.ranks * c.max_tokens, id_bytes = rows * c.top_k * 4;
  int64_t end = 0;
  const auto add = [&](int64_t bytes) {
    const int64_t begin = end;
    end = RoundUp(end + bytes, 256);
    return begin;
  };
  layout.sent = add(int64_t{c.ranks} * 4);
  layout.acks = add(int64_t{c.ranks} * 4);
  layout.chunks = CeilDiv(c.max_tokens, kChunkRows);
  layout.arrived = add(c.ranks * layout.chunks * 4);
  layout.counts = add(int64_t{c.ranks} * 4);
  layout.tokens = add(rows * 4);
  layout.ids = add(id_bytes);
  layout.weights = add(c.sum_by_rank ? id_bytes : 0);
  layout.rows = add(rows * layout.row_stride);
  layout.returned = add(c.max_tokens * (c.sum_by_rank ? c.ranks : c.top_k) * layout.combined_bytes);
  layout.bytes = end;
  return layout;
}

ExchangeSlotMemory SlotMemoryOf(const ExchangeConfig& c) {
  const int64_t words = CeilDiv(c.max_tokens, 32) * c.ranks;
  return {.state = DeviceMemory(sizeof(ExchangeState)),
          .words = DeviceMemory(words * sizeof(uint32_t)),
          .before = DeviceMemory(words * sizeof(int32_t))};
}

ExchangeBatch BatchOf(const ExchangeConfig& c, const ExchangeSlotMemory& memory,
                      const DeviceMemory& experts, int num_experts) {
  ExchangeBatch b = {};
  b.state = memory.state.as<ExchangeState>();
  b.words = memory.words.as<uint32_t>();
  b.before = memory.before.as<int32_t>();
  b.experts = experts.as<int32_t>();
  for (int r = 0; r < c.ranks; ++r) b.world_ranks[r] = c.world_ranks ? c.world_ranks[r] : r;
  b.ranks = c.ranks;
  b.rank = c.rank;
  b.hidden = static_cast<int>(c.hidden);
  b.top_k = c.top_k;
  b.max_tokens = static_cast<int>(c.max_tokens);
  b.num_experts = num_experts;
  b.dispatched = RowKindOf(c.dispatched);
  b.combined = RowKindOf({.dtype = c.combined});
  b.sum_by_rank = c.sum_by_rank;
  b.low_latency = c.low_latency;
  return b;
}

void SetTokens(ExchangeBatch& batch, const RowExchange::Tokens& tokens) {
  if (tokens.tokens < 0 || tokens.tokens > batch.max_tokens)
    throw Resource("exchange on GPUs: {} tokens on one rank exceed the capacity of {}",
                   tokens.tokens, batch.max_tokens);
  if (tokens.dtype != DType::kF32 && tokens.dtype != DType::kBF16)
    throw Invalid("exchange on GPUs: tokens of {}, want float32 or bfloat16", Name(tokens.dtype));
  batch.x = tokens.x;
  batch.x_is_bf16 = tokens.dtype == DType::kBF16;
  batch.ids = tokens.ids;
  batch.weights = tokens.weights;
  batch.addend = tokens.addend;
  batch.tokens = static_cast<int>(tokens.tokens);
}

DeviceMemory PlacesOf(const ExpertMap& experts, int ranks) {
  std::vector<int32_t> places(experts.size());
  for (int e = 0; e < experts.size(); ++e) {
    CHECK_LT(experts.Owner(e), ranks);
    CHECK_LT(experts.LocalId(e), 1 << kRankShift);
    places[e] = experts.Owner(e) << kRankShift | experts.LocalId(e);
  }
  DeviceMemory memory(places.size() * sizeof(int32_t));
  CopyToDevice(memory.data(), places.data(), memory.bytes(), "expert map");
  return memory;
}

}  // namespace switchyard::cuda
