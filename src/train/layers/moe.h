// MoE feed-forward over the ranks of an expert-parallel group, split into phases that a schedule
// may interleave with other work.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/families/family.h"
#include "moe/types.h"
#include "train/exchange/expert_exchange.h"
#include "train/layers/feed_forward.h"
#include "train/layers/recompute.h"
#include "train/layers/router.h"

namespace switchyard::train {

// Activations of one micro-batch in one MoE layer, from Route to the end of the backward pass. Slot
// t · k + j is the j-th expert of token t. A rank sorts its slots by expert, then by slot. The rows
// of an expert are ordered by source rank, and those of one source rank by slot. If tokens are
// partitioned over ranks in order, the rows of an expert therefore have the same order on any
// number of ranks. So sums over these rows have the same bits.
template <typename T>
struct MoeState {
  RouterState<T> router;
  std::vector<int32_t> slots;  // [n] sorted; slots without an expert are omitted
  std::vector<int32_t> place;  // [m · k] index of a slot in `slots`, or -1
  std::vector<int32_t> sent;   // [E] rows for each expert
  std::vector<T> outputs;      // [n, H] received expert outputs; backward: received gradients of
                               // the expert inputs
  // [m, H] rows of the tokens, which experts may gather directly.
  const T *x = nullptr, *dy = nullptr;
  std::vector<T> dweights;  // [m, k]

  // The following members describe the rows that this rank's experts receive.
  std::vector<int32_t> offsets;  // [E_local + 1] prefix sum of each expert's rows
  // [R] for each expert row: the index of the dispatched row of which it is a copy, and the top-k
  // slot.
  std::vector<int32_t> row_of, slot_of;
  // [dispatched rows, k] index of the expert row of each (dispatched row, top-k slot); -1: the
  // expert is on another rank
  std::vector<int32_t> position;
  std::vector<T> rows, results;  // [R, H] inputs and outputs; backward: gradients of the outputs
  std::vector<T> drows;          // [R, H] gradients of the inputs
  // [R] only if outputs are recomputed, and ranks exchange rows: the router weight of each expert
  // row and its gradient.
  std::vector<T> row_weights, row_dweights;
  FeedForwardState<T> experts;

  FeedForwardState<T> shared;
  std::vector<T> all_x;                   // only with tensor parallelism: x of all rows
  std::vector<T> shared_output, dshared;  // [m, H]
  DispatchHandle exchange;
};

// Forward: Route, BeginDispatch, EndDispatch, RunExperts, BeginCombine, EndCombine; SharedForward
// anywhere before EndCombine. Backward: BeginCombineGradient, EndCombineGradient,
// RunExpertsGradient, BeginDispatchGradient, EndDispatchGradient; SharedBackward anywhere before
// EndDispatchGradient. Between a Begin and its End, calls for other states (micro-batches) are
// allowed. Every rank makes the same calls, with m = 0 if it has no tokens. Owned by its layer;
// used by the rank's thread only.
template <typename T>
class MoeLayer {
 public:
  // Adds the parameters of this rank's experts only, which are its EvenPart of all experts.
  // `prefix`: "model.layers.3.". The dispatcher is borrowed. `tp` partitions the rows of a
  // micro-batch and the width of the shared experts. Each rank routes its own rows.
  // With recomputation, the backward pass computes the experts' outputs again where the experts
  // are, so the gradients of the router weights come back over the exchange.
  MoeLayer(const ModelConfig& config, const TensorNames& names, const std::string& prefix,
           const ExpertRanks& ranks, const TensorGroup& tp, ParameterSet<T>& set,
           const BackwardOptions& backward);

  void Route(const T* x, int64_t m, MoeState<T>* state, ThreadPool& pool);
  void BeginDispatch(const T* x, MoeState<T>* state, ThreadPool& pool);
  void EndDispatch(MoeState<T>* state, ThreadPool& pool);
  void RunExperts(MoeState<T>* state, ThreadPool& pool);
  void BeginCombine(MoeState<T>* state, ThreadPool& pool);
  // y[t] += Σ_j weight[t, j] · output[t, j], then the shared experts.
  void EndCombine(int64_t m, MoeState<T>* state, T* y, ThreadPool& pool);
  // x [m, H]. `all`: total number of rows over the ranks of `tp`.
  void SharedForward(const T* x, int64_t all, MoeState<T>* state, ThreadPool& pool);

  // x: as in BeginDispatch.
  void BeginCombineGradient(const T* x, const T* dy, int64_t m, MoeState<T>* state,
                            ThreadPool& pool);
  void EndCombineGradient(MoeState<T>* state, ThreadPool& pool);
  // `later` gets the weight gradients; null: now.
  void RunExpertsGradient(MoeState<T>* state, ThreadPool& pool, LaterWeights<T>* later);
  void BeginDispatchGradient(MoeState<T>* state, ThreadPool& pool);
  void SharedBackward(const T* x, const T* dy, int64_t all, MoeState<T>* state, ThreadPool& pool,
                      LaterWeights<T>* later);
  // Writes dx [m, H]: through experts, router and shared experts.
  void EndDispatchGradient(const T* x, int64_t m, MoeState<T>* state, T* dx, ThreadPool& pool);

  // Exchanges the activations of two states that recomputation drops.
  void SwapDropped(MoeState<T>& a, MoeState<T>& b) const;
  // Elements of the state of m tokens of this rank, `all` over the TP group, if each expert gets
  // the same number of rows: kept, and in `experts` what recomputation would drop.
  ActivationCounts Count(int64_t m, int64_t all, bool balances, const ThreadPool& pool) const;

  Router<T>& router() { return router_; }
  Range experts() const { return mine_; }  // experts of this rank

 private:
  bool IsSingleRank() const { return ranks_.size == 1; }
  // Whether experts gather their rows directly from the tokens' rows, so that no row is exchanged.
  // The result is the same in all phases.
  bool Gathers(const ThreadPool& pool) const;
  int64_t RowBytes() const { return (hidden_ + k_) * static_cast<int64_t>(sizeof(T)); }
  void Pack(const T* rows, bool weighted, const MoeState<T>& state, T* out, ThreadPool& pool);
  void OrderByExpert(const Dispatched& in, MoeState<T>* state) const;
  // The inputs of experts that gather their rows. TokenRows gives the rows of the tokens.
  // OutputGradients gives weight · dy, and also computes the gradient of each router weight.
  TileRows<T> TokenRows(const MoeState<T>& state) const;
  TileRows<T> OutputGradients(MoeState<T>* state) const;
  // Dispatches `rows`: the rows of the tokens, or with `gradient` the rows of dy, which use the
  // routing of the forward pass. Rows of dy are multiplied by the router weights. This happens here
  // on a single rank, else in ReceiveRows; with recomputation in RecomputeOutputs.
  void SendToExperts(const T* rows, bool gradient, std::vector<T>* own, MoeState<T>* state,
                     ThreadPool& pool);
  void ReceiveRows(bool gradient, std::vector<T>* rows, MoeState<T>* state, ThreadPool& pool);
  // `extra`: a number for each row that is sent with it; may be empty.
  void ReturnRows(const std::vector<T>& rows, const std::vector<T>& extra, MoeState<T>* state,
                  ThreadPool& pool);
  // Receives the rows that ReturnRows has sent, and their extra numbers [m, k] if `extra` is not
  // null. On a single rank, nothing was sent: moves the rows from `own`, the argument of
  // ReturnRows.
  void ReceiveReturnedRows(std::vector<T>* own, std::vector<T>* rows, std::vector<T>* extra,
                           MoeState<T>* state, ThreadPool& pool);
  // Computes the experts' state and outputs again, and from the outputs the gradients of the router
  // weights. Then multiplies the rows of dy, in `results`, by the weights. Overwrites drows.
  void RecomputeOutputs(MoeState<T>* state, ThreadPool& pool);

  const int64_t hidden_, num_experts_, k_;
  const ExpertRanks ranks_;
  const TensorGroup tp_;
  const Range mine_;
  const bool recompute_, separate_weights_;
  Router<T> router_;
  std::vector<FeedForward<T>> experts_;  // experts of this rank
  std::vector<FeedForward<T>> shared_;   // shared expert: size 0 or 1
};

}  // namespace switchyard::train
