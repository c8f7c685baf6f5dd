// The MoE feed-forward over the ranks of an expert-parallel group, in the phases that a schedule
// may interleave with other work.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/families/family.h"
#include "moe/types.h"
#include "train/exchange/row_exchange.h"
#include "train/layers/feed_forward_tiles.h"
#include "train/layers/router.h"

namespace switchyard::train {

// One micro-batch in one MoE layer, from Route to the end of the backward pass. Slot t · k + j is
// the j-th expert of token t. The rank's slots are sorted by expert, and in each expert by slot:
// that is the order in which rows travel, and in which an expert sees those of one rank; those of
// different ranks follow one another by rank. With tokens cut over ranks in order an expert's rows
// are therefore in one order on any number of ranks, and so are the sums over them.
template <typename T>
struct MoeState {
  RouterState<T> router;
  std::vector<int32_t> slots;  // [n] sorted; slots without an expert are left out
  std::vector<int32_t> place;  // [m · k] where a slot is in `slots`, or -1
  std::vector<int32_t> sent;   // [E] rows for each expert
  std::vector<T> outputs;      // [n, H] of the experts, as they came back; backward: gradients of
                               // their inputs, as they came back
  const T *x = nullptr, *dy = nullptr;  // [m, H] of the tokens, for experts that gather
  std::vector<T> dweights;              // [m, k]

  // As the owner of experts.
  std::vector<int32_t> received;  // [ranks, E_local] rows
  std::vector<int32_t> offsets;   // [E_local + 1] of each expert's rows
  std::vector<T> rows, results;   // [R, H] inputs and outputs; backward: of these the gradients
  std::vector<T> drows;           // [R, H] gradients of the inputs
  FeedForwardState<T> experts;

  FeedForwardState<T> shared;
  std::vector<T> all_x;                   // of a tensor-parallel rank: x of all rows
  std::vector<T> shared_output, dshared;  // [m, H]
  ExchangeHandle exchange;
};

// Forward: Route, BeginDispatch, EndDispatch, RunExperts, BeginCombine, EndCombine; ShareForward
// anywhere before EndCombine. Backward: BeginCombineGradient, EndCombineGradient,
// RunExpertsGradient, BeginDispatchGradient, EndDispatchGradient; ShareBackward anywhere before the
// last. Between a Begin and its End other states may be worked on. Every rank makes the same calls,
// with m = 0 where it has no tokens. Owned by its layer; used by the rank's thread.
template <typename T>
class MoeLayer {
 public:
  // Parameters of the experts of this rank alone: EvenShare of all of them. `prefix`:
  // "model.layers.3.". The exchange is borrowed. `tp` shares the rows of a micro-batch, each of its
  // ranks routing its share, and the shared experts' width.
  MoeLayer(const ModelConfig& config, const TensorNames& names, const std::string& prefix,
           RowExchange& exchange, const TensorGroup& tp, ParameterSet<T>& set);

  void Route(const T* x, int64_t m, MoeState<T>* state, ThreadPool& pool);
  void BeginDispatch(const T* x, MoeState<T>* state, ThreadPool& pool);
  void EndDispatch(MoeState<T>* state, ThreadPool& pool);
  void RunExperts(MoeState<T>* state, ThreadPool& pool);
  void BeginCombine(MoeState<T>* state, ThreadPool& pool);
  // y[t] += Σ_j weight[t, j] · output[t, j], then the shared experts.
  void EndCombine(int64_t m, MoeState<T>* state, T* y, ThreadPool& pool);
  // all: the rows of all ranks of `tp`; x [m, H].
  void ShareForward(const T* x, int64_t all, MoeState<T>* state, ThreadPool& pool);

  void BeginCombineGradient(const T* dy, int64_t m, MoeState<T>* state, ThreadPool& pool);
  void EndCombineGradient(MoeState<T>* state, ThreadPool& pool);
  void RunExpertsGradient(MoeState<T>* state, ThreadPool& pool);
  void BeginDispatchGradient(MoeState<T>* state, ThreadPool& pool);
  void ShareBackward(const T* x, const T* dy, int64_t all, MoeState<T>* state, ThreadPool& pool);
  // dx [m, H] written: through experts, router and shared experts.
  void EndDispatchGradient(const T* x, int64_t m, MoeState<T>* state, T* dx, ThreadPool& pool);

  Router<T>& router() { return router_; }
  Share experts() const { return mine_; }  // of this rank

 private:
  bool Alone() const { return exchange_.size() == 1; }
  // Whether experts put their rows together by themselves, from those of the tokens, so that no row
  // travels. The same in all phases.
  bool Gathers(const ThreadPool& pool) const;
  void Pack(const T* rows, bool weighted, int64_t begin, int64_t count, const MoeState<T>& state,
            T* out, ThreadPool& pool);
  // What experts gather: the tokens' rows; weight · dy, with the weight's gradient on the way.
  TileRows<T> TokenRows(const MoeState<T>& state) const;
  TileRows<T> OutputGradients(MoeState<T>* state) const;
  void SendToExperts(const T* rows, bool weighted, bool counts, std::vector<T>* own,
                     MoeState<T>* state, ThreadPool& pool);
  void TakeRows(bool counts, std::vector<T>* rows, MoeState<T>* state, ThreadPool& pool);
  void SendBack(const std::vector<T>& rows, MoeState<T>* state, ThreadPool& pool);
  // A rank alone takes `own`, what SendBack was given.
  void TakeBack(std::vector<T>* own, std::vector<T>* rows, MoeState<T>* state);

  const int64_t hidden_, num_experts_, k_;
  RowExchange& exchange_;
  const TensorGroup tp_;
  const Share mine_;
  Router<T> router_;
  std::vector<FeedForward<T>> experts_;  // of this rank
  std::vector<FeedForward<T>> shared_;   // none or one
};

// Bytes of the longest message that a layer sends: every row of `tokens` tokens to one rank.
size_t MoeMessageBytes(const ModelConfig& config, int ep, int64_t tokens, size_t element_bytes);

}  // namespace switchyard::train
