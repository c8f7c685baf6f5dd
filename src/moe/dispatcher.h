// The interface that moves token rows to the ranks that own their experts, and back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moe/router.h"
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
// Three more, all optional, take copies out of the way: InputRows, where whoever makes the rows may
// write them for other ranks to read, OutputPlaces, where the runner may leave its outputs, and
// PrepareCombine, what can be done for the combine before its flags.
//
// Begin starts and returns, End waits; other work fits in between, another batch's calls too. Every
// rank of the group makes the same calls in the same order, ranks without tokens included. A batch
// is its handle; the dispatcher keeps nothing of it.
//
// Worked by hand: two ranks, experts A B on rank 0 and C D on rank 1, top-2. Written t.j is slot j
// of token t; "·" is −1.
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
//   combine           into [token, slot] of the rank the token came from; own ones stay
//     buffer gets     t0.0 from 0, t0.1 from 1          t2.0 from 0, ·
//                     t1.0 from 1, t1.1 from 1          t3.0 from 1, t3.1 from 0
//     y               w·t0.0 + w·t0.1, w·t1.0 + w·t1.1  w·t2.0, w·t3.0 + w·t3.1
//
//   low-latency       rows as above; [expert, source, place] names them, capacity 2
//     places          A from 0: t0 _   from 1: t3 _     C from 0: t1 _    from 1: _  _
//                     B from 0: _  _   from 1: t2 _     D from 0: t0 t1   from 1: t3 _
//     counts          source 0 (1,0), source 1 (1,1)    source 0 (1,2), source 1 (0,1)
//     outputs         t0.0 t3.1 │ t2.0                  t1.0 │ t0.1 t1.1 t3.0
//
// The experts see the same rows in either mode, and the sums run over slots in one order at one
// place: modes and placements change no bit of y.
//
// Owned by the runtime, used by the rank's thread only.
class Dispatcher {
 public:
  virtual ~Dispatcher() = default;

  // Whether each rank routes, sends and combines tokens of its own (token_spread.h). Otherwise
  // every rank takes all tokens and sums its own experts' part.
  virtual bool scatters() const = 0;
  // Layouts that EndDispatch may give, to find permutes for at start.
  virtual std::vector<DispatchLayout> layouts() const = 0;
  // Most tokens of one rank in one exchange; where a rank has more, the batch goes in rounds.
  virtual int64_t MaxTokens(bool decode) const = 0;
  // Whether decode rows and others want exchanges of their own, so that a mixed batch is split.
  virtual bool splits_mixed_batches() const { return false; }

  // Before BeginDispatch of the same batch, or never: begins the batch, and returns where its rows
  // may be left in the format in flight (ExchangeShape::row_format), row after row. BeginDispatch
  // then takes them for rounded x and reads x no more. Null, and nothing has begun: it takes x
  // only.
  virtual std::byte* InputRows(int64_t /*tokens*/, bool /*decode*/, DispatchHandle*) {
    return nullptr;
  }
  // x [topk.tokens, H] and `topk` must live, unchanged, until EndCombine returns. `decode`: every
  // sequence has one row, on all ranks. `handle`: idle, filled here. Errors: kResource where tokens
  // exceed a buffer or too many batches are in flight; kTimeout, naming the stage and the peer (the
  // same for the other calls).
  virtual void BeginDispatch(const float* x, const TopK& topk, bool decode,
                             DispatchHandle* handle) = 0;
  // Whether EndDispatch would not wait: lets a caller do other work in small pieces until the rows
  // are here. Takes no lock and never blocks. Deadlines are EndDispatch's: who polls has to call it
  // after some time in any case, and learns there whom it waited for.
  virtual bool Arrived(DispatchHandle*) { return true; }
  virtual Dispatched EndDispatch(DispatchHandle* handle) = 0;
  // Between EndDispatch and PrepareCombine, or never: where each of the runner's outputs
  // [experts.num_rows] is to be left, rounded to ExchangeShape::output_dtype, null for those that
  // nobody wants. Empty: outputs stay float32, in experts.rows of the calls below.
  virtual std::span<std::byte* const> OutputPlaces(const ExpertRows& /*experts*/, DispatchHandle*) {
    return {};
  }
  // Before BeginCombine, or as a part of it: outputs to where they will be read, nobody told yet.
  virtual void PrepareCombine(const ExpertRows& /*experts*/, DispatchHandle*) {}
  // experts.rows must live until EndCombine returns.
  virtual void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) = 0;
  // y [topk.tokens, H]: sums over slots in slot order in float32, zero where all ids are −1. (With
  // --moe-combine-rows rank: over ranks, of what each one's experts add up to.)
  virtual void EndCombine(DispatchHandle* handle, float* y) = 0;

  // Dispatches other rows x [topk.tokens, H] by the routing of the batch that `handle` carried last
  // (ended, on every rank): what a backend computed and exchanged for it is not done again.
  // Training sends gradients so. Here it is the same as BeginDispatch with the handle's topk.
  virtual void BeginDispatchAgain(const float* x, bool decode, DispatchHandle* handle) {
    BeginDispatch(x, *handle->topk, decode, handle);
  }

  // EP ranks that still take part, 1 or 0 each; empty where the backend does not outlive the loss
  // of one. Rows for a lost rank are not sent, and its experts add nothing.
  virtual std::span<const uint8_t> active_ranks() const { return {}; }
};

}  // namespace switchyard
