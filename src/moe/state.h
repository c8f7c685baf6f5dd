// The state of one pass in the MoE layers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "moe/dispatchers/token_partition.h"
#include "moe/router/router_fault.h"
#include "moe/router/routing_observer.h"
#include "moe/types.h"

namespace switchyard {

// The last stage of MoeLayer that has run for a batch. Comments name the function of the stage.
enum class BatchStage : uint8_t {
  kEnded,     // no exchange is in flight
  kStarted,   // Start
  kRouted,    // Route
  kSent,      // BeginDispatch
  kArrived,   // EndDispatch
  kPermuted,  // PrePermute
  kComputed,  // RunExperts
  kReady,     // PostPermute
  kReturned,  // BeginCombine
  kDown,      // RunDown
};

// The state of a batch in a layer, and the current position in its rounds. A backend derives its
// own state from this type and adds the outputs of each stage, which the next stage reads. A pass
// has one state for all layers, which reuse its memory. States of several passes may be in flight
// at the same time.
struct MoeState {
  explicit MoeState(int pass_slot) : slot(pass_slot) {}
  virtual ~MoeState() = default;
  MoeState(const MoeState&) = delete;
  MoeState& operator=(const MoeState&) = delete;

  // Called around a pass, for devices that record routing themselves: BeginPass before its first
  // layer, EndPass after its last layer, and ReportRouting after the host has waited for it. Calls
  // are not captured in CUDA graphs. `rows`: number of rows of this rank's group, without padding.
  // `first`: index of the first of them in the whole batch. ReportRouting reports the passes up to
  // number `last` that have ended and were not reported yet. A second pass may end before the first
  // one is reported.
  virtual void BeginPass(int64_t /*rows*/, int64_t /*first*/) {}
  virtual void EndPass() {}
  virtual void ReportRouting(uint64_t /*last*/) {}

  const int slot;  // index of the pass among those in flight; selects its exchange buffers

  // Set before BeginPass. pass: the number of the pass, the same on all ranks. micro_batch: the
  // index of the micro-batch to which this state belongs.
  uint64_t pass = 0;
  int micro_batch = 0;

  // Rows of this rank's attention group in this batch, and their outputs.
  const float* hidden = nullptr;  // [tokens, H]
  float* out = nullptr;           // [tokens, H]
  int64_t width = 0;              // H
  // The rows that the router reads [tokens, router_width]: `hidden`, or MoeTokens::router_rows.
  const float* router_hidden = nullptr;
  int64_t router_width = 0;
  bool decode = false;   // every sequence has one row, on all ranks
  bool streams = false;  // the GPU computes the experts of CPU ranks (moe/stream_experts.h)
  int32_t* routed_experts = nullptr;  // [tokens, top_k] or null
  RouterFaults router_faults;         // [tokens]
  int64_t first_row = 0;  // index of the first token among the group's tokens in the pass
  // Number of lane tokens of this layer and pass that an earlier batch has routed.
  int64_t routed_before = 0;

  // Rows that this rank routes. If the tokens are partitioned, these are its lane's tokens,
  // otherwise all tokens.
  bool partitioned = false;
  TokenPartition partition;
  // [ep] number of tokens in each rank's lane. Without a partition: [1] number of all tokens.
  std::vector<int64_t> lanes;
  Range own;                        // the own tokens, a range of the group's tokens
  const float* x = nullptr;         // [lane tokens, H]
  const float* router_x = nullptr;  // [lane tokens, router_width]
  float* y = nullptr;               // [lane tokens, H]
  int64_t lane_tokens = 0;

  BatchStage stage = BatchStage::kEnded;  // set by MoeLayer

  // Set by MakeState: whether MoeLayer measures the times of the stages. Only if the stages are run
  // by the host, and not captured in a graph.
  bool timed = false;
  MoeTimes times;  // of this batch in this layer

  // Set by BeginPass, for devices that measure the times of the stages themselves: whether
  // MarkStage enqueues kernels that read the device's clock. Passes are chosen by their number, so
  // all ranks clock the same ones. A graph captured from a clocked pass is replayed for clocked
  // passes only.
  bool clocked = false;
  // Called where the work of another stage begins: the work that is enqueued from now on counts to
  // `part`; null: to no part. A layer begins and ends without a part.
  virtual void MarkStage(int64_t MoeTimes::* /*part*/) {}

  // Whether another pass is in flight, so that exchanges overlap computation.
  bool overlaps = false;

  // The current round. Every rank has the same number of rounds.
  Range round;  // range of the lane's tokens
  int64_t rounds = 0, rounds_done = 0;
  int64_t max_round_tokens = 0;  // maximum tokens of one rank in one exchange
  bool combines_once = false;    // if set, one combine covers all rounds, after the last one
  bool rows_staged = false;      // whether the caller has written the rows to InputRows' buffer

  std::vector<size_t> part_sizes;  // size of each member's part in an all-gather or reduce-scatter
  std::vector<int64_t> other_tokens;  // [dp]

  // Advances to the next round. Returns false after the last one.
  bool NextRound() {
    if (rounds_done == rounds) return false;
    const int64_t begin = std::min(lane_tokens, rounds_done * max_round_tokens);
    round = {begin, std::min(lane_tokens, begin + max_round_tokens)};
    ++rounds_done;
    return true;
  }
  // Whether this is the first round. The shared expert computes all own tokens in the first round.
  bool in_first_round() const { return rounds > 0 && rounds_done <= 1; }

  // Number of tokens in the current round, for a lane with `lane` tokens.
  int64_t InRound(int64_t lane) const {
    return std::clamp<int64_t>(lane - (rounds_done - 1) * max_round_tokens, 0, max_round_tokens);
  }
  int64_t LongestInRound() const { return InRound(std::ranges::max(lanes)); }
  OwnTokens OwnOfRound() const {
    return OwnInRound(own, partitioned ? partition.own_in_lane() : 0, round);
  }
  // The tokens of the round that this rank reports to observers. If all ranks route all tokens,
  // each rank reports an even share of them.
  OwnTokens ReportedInRound(const Mesh& mesh) const {
    if (partitioned) return OwnOfRound();
    const Range share = EvenPart(lane_tokens, mesh.tp(), mesh.tp_rank());
    return OwnInRound(share, share.begin, round);
  }

  // Index of the round's first token among the lane's tokens of this layer and pass.
  int64_t first_routed() const { return routed_before + round.begin; }

  const float* own_x() const { return hidden + own.begin * width; }
  const float* round_x() const { return x + round.begin * width; }
  const float* round_router_x() const { return router_x + round.begin * router_width; }
  // Whether the current round is the last one of its combine; combine_y: the outputs of that
  // combine.
  bool ends_combine() const { return !combines_once || rounds_done == rounds; }
  float* combine_y() const { return combines_once ? y : y + round.begin * width; }
};

}  // namespace switchyard
