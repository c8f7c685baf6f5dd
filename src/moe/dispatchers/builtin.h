// The built-in dispatchers of CPU ranks, by the values of --moe-a2a-backend.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "moe/backends.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/dispatchers/rounds.h"

namespace switchyard {

// none: collectives only.
//
// Every rank computes its experts for every token and sums their outputs. Sums are then reduced
// over ranks, so the reduction order is not that of slots. On several ranks, results therefore
// equal those of the all-to-all backends within rounding. On one rank they are bit-identical, since
// rows are rounded in the same way.
//   One attention group: all ranks have all tokens. No gather is needed, and the layer's all-reduce
//   sums the partial results.
//   DP attention: an all-gather of rows and routing, then a reduce-scatter of the sums.
DispatcherBackend NoneBackend();

// deepep: all-to-all in the mode of `--deepep-mode`.
//
// Mode auto uses low_latency for decode batches and normal for others. Error kInvalid names the
// flag if the mode is unknown.
DispatcherBackend DeepEpBackend();
// deepep's normal mode for any group of ranks, instead of the EP group of a RankComm. `experts` and
// `pool` must outlive the dispatcher.
std::unique_ptr<Dispatcher> MakeDeepEpNormal(SymmetricMemory& memory, std::vector<int> group,
                                             const PassRounds& rounds, const ExchangeShape& shape,
                                             const ExpertMap& experts, ThreadPool& pool,
                                             const ExchangeSlots::Options& options);
// Bytes of symmetric memory that it allocates on each rank.
size_t DeepEpNormalBytes(const PassRounds& rounds, const ExchangeShape& shape, int slots);

// Where deepep's normal mode has its buffers in the arenas, for a rank whose GPU takes part with
// its own kernels (moe/cuda/dispatchers/arena_exchange.h). Offsets in bytes from the begin of a
// slot; the slots of an exchange are adjacent. P: ranks of the group, k: slots of a token.
struct DeepEpArena {
  size_t counts = 0;   // [P sources] i32, at the destination: rows of the source
  size_t rows = 0;     // [P sources, capacity, row_bytes], at the source: its rows by token
  size_t tags = 0;     // [P sources, capacity, 1 + k] i32, at the destination: token, local ids
  size_t outputs = 0;  // [tokens, k, H], at the source
  size_t flags = 0;    // [stages, P sources] u32, one in each flag_stride bytes
  size_t flag_stride = 0;
  size_t slot_bytes = 0;
  size_t bytes = 0;      // of all slots
  int64_t capacity = 0;  // maximum tokens of a source in a round
  int64_t row_bytes = 0;
  int rows_flag = 0, outputs_flag = 0;  // stages
};
// `shape`: with combine by slot and one part. `rounds`: with a combine in each round.
DeepEpArena ArenaOfDeepEpNormal(const PassRounds& rounds, const ExchangeShape& shape);

// flashinfer: one-sided exchange.
//
// A rank writes nothing but flags to another rank's arena. It publishes data in its own arena and
// raises flags; ranks that need the data pull it from there.
//
// Dispatch: a source publishes its rows and their routing. Each rank reads the routing of all
// sources, selects the rows of its experts, and pulls them. Combine: the experts' rank publishes
// one output per (token, slot), packed by source in token order, and the offset of each source. The
// tokens' rank computes this order from the routing and sums the outputs in place.
//
// No counts are exchanged before rows are pulled: there is one flag in each direction. A row is
// written once, however many ranks read it. The disadvantage is that a read over the interconnect
// stalls the reader; a write would not stall. Local rows and outputs are not moved.
//
// Traffic, for T tokens of hidden size H on each of P ranks: P · T · k ids to every rank; at most
// min(k, P) rows of H per token dispatched; k rows of H per token combined. Memory per slot: T rows
// and T · k ids, plus outputs for the worst case, (P − 1) · T · min(k, experts of a rank) rows (the
// system commits only pages that were used). Pulled rows are stored in the batch's handle.
//
// Results are bit-identical to deepep: experts receive the same rows, and sums are in slot order.
// Based on the MoE all-to-all of TensorRT-LLM and FlashInfer (flags that count rounds and are never
// cleared, a combine that pulls).
//
// Why no buffer is overwritten too early (terms as in exchange_slots.h): B reads A's published rows
// of round r before B raises its outputs flag of round r. A ends round r only after it has seen
// that flag from every B, and only then publishes round r + 1. A reads B's outputs of round r
// before A ends round r, and so before A raises its rows flag of round r + 1. B waits for that flag
// before it writes outputs of round r + 1.
//
// A batch has at most `--deepep-normal-long-seq-per-round-tokens` tokens of a rank, as in deepep's
// normal mode. Longer batches take several rounds.
DispatcherBackend FlashInferBackend();

// mooncake: fault-tolerant all-to-all.
//
// deepep in the mode of `--deepep-mode`, with an active-rank mask. A rank that does not end a stage
// within `--elastic-ep-timeout` is lost, permanently and for all other ranks (masked_ranks.h).
// After that nothing is sent to it, its experts contribute nothing, and no rank waits for it. The
// weights of a token's remaining experts are not rescaled. The result of a token without lost
// experts stays bit-identical. active_ranks() and a log line report lost ranks; their experts can
// be restored by a new placement.
//
// With MoE-TP each EP group has its own mask. Operations outside of the exchange (collectives of
// attention and of MoE-TP) do not tolerate a lost rank.
//
// Traffic and memory are deepep's plus one cache line; a stage costs one more atomic operation.
// Based on Mooncake EP (masks and timeouts in the kernels) and DeepEP's shrinking.
DispatcherBackend MooncakeBackend();

}  // namespace switchyard
