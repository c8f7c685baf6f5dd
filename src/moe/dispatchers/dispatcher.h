// The dispatch/combine interface: sends token rows to the ranks of their experts and returns
// outputs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moe/router/router.h"
#include "moe/types.h"

namespace switchyard {

// Four calls carry one batch through the exchange:
//
//   dispatcher.BeginDispatch(x, topk, decode, &handle);      rows leave
//   Dispatched in = dispatcher.EndDispatch(&handle);         rows of this rank's experts are here
//   … pre-permute, runner, post-permute …
//   dispatcher.BeginCombine(outputs, &handle);               outputs leave
//   dispatcher.EndCombine(&handle, y);                       y[t] = Σ_j weight[t, j] · output[t, j]
//
// Three optional calls avoid copies. InputRows returns a buffer that peers read; the producer
// writes the rows directly to it. OutputDestinations returns the destinations of the runner's
// outputs. PrepareCombine does the work of combine that precedes raising its flags.
//
// One combine may cover several rounds of a batch (MaxCombineTokens). Each round then has its own
// BeginDispatch, EndDispatch and BeginCombine, with its place in DispatchHandle::round. EndCombine
// follows the last round only. A later round reuses the dispatch buffers of the previous round. Its
// dispatch therefore waits until every rank has called BeginCombine for the previous round.
//
// For single-batch overlap, combine may return outputs in several parts (expert_parts.h): one call
// of BeginCombinePart for each part replaces BeginCombine. While later parts are computed, the
// outputs of earlier ones are sent, and their tokens' ranks may sum them.
//
// Begin starts an operation and returns, End waits for it. Other work, including calls of another
// batch, may run in between. Every rank of the group makes the same calls in the same order, ranks
// without tokens included. A batch's state lives in its handle; the dispatcher holds none.
//
// Example: two ranks, experts A B on rank 0 and C D on rank 1, top-2. t.j is slot j of token t; "·"
// is −1.
//
//                     rank 0                            rank 1
//   own tokens        t0 → (A, D)   t1 → (C, D)         t2 → (B, ·)   t3 → (D, A)
//
//   normal
//     count sent      1 to rank 0, 2 to rank 1          2 to rank 0, 1 to rank 1
//     row received    0     1     2                     0     1     2
//       token         t0    t2    t3                    t0    t1    t3
//       local ids     (0,·) (1,·) (·,0)                 (·,1) (0,1) (1,·)
//   pre-permute       A        │ B                      C    │ D
//     output for      t0.0 t3.1│ t2.0                   t1.0 │ t0.1 t1.1 t3.0
//     row_ids         0    2   │ 1                      1    │ 0    1    2
//     offsets         0 2 3                             0 1 4
//     position        (0,·) (2,·) (·,1)                 (·,1) (0,2) (3,·)
//   combine           to [token, slot] of the token's source rank; local outputs stay
//     buffer gets     t0.0 from 0, t0.1 from 1          t2.0 from 0, ·
//                     t1.0 from 1, t1.1 from 1          t3.0 from 1, t3.1 from 0
//     y               w·t0.0 + w·t0.1, w·t1.0 + w·t1.1  w·t2.0, w·t3.0 + w·t3.1
//
//   low-latency       rows as above, indexed by [expert, source, place], capacity 2
//     places          A from 0: t0 _   from 1: t3 _     C from 0: t1 _    from 1: _  _
//                     B from 0: _  _   from 1: t2 _     D from 0: t0 t1   from 1: t3 _
//     counts          source 0 (1,0), source 1 (1,1)    source 0 (1,2), source 1 (0,1)
//     outputs         t0.0 t3.1 │ t2.0                  t1.0 │ t0.1 t1.1 t3.0
//
// The experts compute the same rows in either mode. If rows combine by slot, the sum runs over
// slots in one order on one rank, so that y is bit-identical across modes and placements.
//
// Owned by the backend. Used by the rank's thread only.
class Dispatcher {
 public:
  virtual ~Dispatcher() = default;

  // Whether each rank routes, dispatches and combines its own tokens (token_partition.h). If not,
  // every rank has all tokens and sums the outputs of its own experts.
  virtual bool scatters() const = 0;
  // Layouts that EndDispatch may return; the backend looks up their permutes at startup.
  virtual std::vector<DispatchLayout> layouts() const = 0;
  // Maximum tokens of one rank in one exchange. Larger batches take several rounds.
  virtual int64_t MaxTokens(bool decode) const = 0;
  // Maximum tokens of one rank in one combine, over all its rounds.
  virtual int64_t MaxCombineTokens(bool decode) const { return MaxTokens(decode); }
  // Whether a batch with both decode and prefill rows is split into two exchanges.
  virtual bool splits_mixed_batches() const { return false; }

  // Optional, before BeginDispatch of the same batch. Begins the batch and returns a contiguous
  // buffer for its rows in ExchangeShape::row_format. BeginDispatch then sends these rows and does
  // not read x. If the result is null, no batch has begun, and BeginDispatch reads x.
  virtual std::byte* InputRows(int64_t /*tokens*/, bool /*decode*/, DispatchHandle*) {
    return nullptr;
  }
  // x [topk.tokens, H] and `topk` must stay valid and unchanged until EndCombine returns. In a
  // round that is not the last of its combine, they must stay so only until BeginCombine returns.
  // `decode`: every sequence has one row, on all ranks. `handle`: must be idle or between two
  // rounds; filled here. Error kResource if the tokens exceed a buffer or too many batches are in
  // flight. Error kTimeout, which the other calls may throw too, names the stage and the peer.
  virtual void BeginDispatch(const float* x, const TopK& topk, bool decode,
                             DispatchHandle* handle) = 0;
  // Whether EndDispatch would return without waiting. A caller can poll this and run other work in
  // small pieces meanwhile. Takes no lock and never blocks. A polling caller must eventually call
  // EndDispatch, because only EndDispatch checks the timeout and names the missing peer.
  virtual bool Arrived(DispatchHandle*) { return true; }
  virtual Dispatched EndDispatch(DispatchHandle* handle) = 0;
  // Optional, between EndDispatch and PrepareCombine. Returns the addresses [experts.num_rows] to
  // which the runner writes its outputs, rounded to ExchangeShape::output_dtype. An address is null
  // if no rank reads the output. If the result is empty, outputs stay float32, in experts.rows of
  // the calls below.
  virtual std::span<std::byte* const> OutputDestinations(const ExpertRows& /*experts*/,
                                                         DispatchHandle*) {
    return {};
  }
  // Optional: moves outputs to their destinations, but raises no flags. Without this call,
  // BeginCombine moves them.
  virtual void PrepareCombine(const ExpertRows& /*experts*/, DispatchHandle*) {}
  // experts.rows must stay valid as long as BeginDispatch's x.
  virtual void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) = 0;
  // Number of parts in which combine returns outputs, the same on every rank.
  virtual int combine_parts() const { return 1; }
  // Called instead of PrepareCombine and BeginCombine, once for each part, in ascending order. The
  // runner has computed rows part.rows of `experts`: the outputs of the experts
  // ExpertParts::Of(part.index).
  virtual void BeginCombinePart(const ExpertRows& experts, const OutputPart& /*part*/,
                                DispatchHandle* handle) {
    BeginCombine(experts, handle);
  }
  // y [tokens of all rounds, H]: sums over slots in slot order in float32; zero where all ids are
  // −1. With --moe-combine-rows rank, each rank's partial sum is computed first, and y is the sum
  // over ranks.
  virtual void EndCombine(DispatchHandle* handle, float* y) = 0;

  // Called instead of EndCombine, if rows combine by slot and the combine has one round. Waits for
  // the outputs and returns them unweighted, [topk.tokens, k] rows of ExchangeShape::output_dtype.
  // Rows of slots without an expert are undefined. The result is valid until ReleaseOutputs, which
  // ends the batch; null if not supported. Training needs each output for the gradient of its
  // weight.
  virtual const std::byte* EndCombineBySlot(DispatchHandle* /*handle*/) { return nullptr; }
  virtual void ReleaseOutputs(DispatchHandle* /*handle*/) {}

  // Dispatches other rows x [topk.tokens, H] with the routing of the last batch of `handle`. That
  // batch must have had one round and must have ended on every rank. A backend reuses the layout
  // that it computed and exchanged for that batch. Training sends gradients this way. The default
  // implementation calls BeginDispatch with the handle's topk.
  virtual void BeginDispatchAgain(const float* x, bool decode, DispatchHandle* handle) {
    BeginDispatch(x, *handle->topk, decode, handle);
  }

  // [ep] 1 for each active EP rank, 0 for a lost rank. Empty if the backend does not tolerate lost
  // ranks. Rows for a lost rank are not sent, and its experts contribute nothing.
  virtual std::span<const uint8_t> active_ranks() const { return {}; }
};

}  // namespace switchyard
