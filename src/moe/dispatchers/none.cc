#include <functional>
#include <numeric>

#include "moe/dispatchers/builtin.h"
#include "moe/dispatchers/combine.h"

namespace switchyard {
namespace {

// State of one batch.
struct NoneState {
  std::vector<float> rows;         // [all tokens, H] rounded input rows
  const float* x = nullptr;        // `rows`, or the caller's rows
  std::vector<int32_t> tokens;     // [ep] tokens per rank
  std::vector<size_t> sizes;       // [ep] size of each rank's part in a collective
  TopK topk;                       // routing of all tokens
  std::vector<int32_t> local_ids;  // [all tokens, k] −1 for experts of other ranks
  std::vector<float> sums;         // [all tokens, H]
  ExpertRows outputs;
};

class NoneDispatcher : public Dispatcher {
 public:
  explicit NoneDispatcher(const DispatcherContext& context)
      : pool_(context.pool),
        ep_(*context.comm.ep),
        hidden_(context.shape.hidden),
        max_tokens_(context.shape.max_tokens),
        format_(context.shape.row_format),
        output_dtype_(context.shape.output_dtype),
        gathers_(context.comm.mesh.dp() > 1),
        experts_(context.experts) {}

  bool scatters() const override { return gathers_; }
  std::vector<DispatchLayout> layouts() const override { return {DispatchLayout::kStandard}; }
  int64_t MaxTokens(bool) const override { return max_tokens_; }

  void BeginDispatch(const float* x, const TopK& topk, bool, DispatchHandle* handle) override {
    auto& state = handle->Get<NoneState>();
    handle->layout = DispatchLayout::kStandard;
    handle->topk = &topk;
    if (gathers_) {
      GatherAll(x, topk, &state);
    } else {
      state.x = x;
    }
    const TopK& all = gathers_ ? state.topk : topk;
    if (!format_.plain()) RoundRows(all.tokens, &state);
    state.local_ids.resize(all.ids.size());
    for (size_t i = 0; i < all.ids.size(); ++i)
      state.local_ids[i] = experts_.LocalIdOn(ep_.rank(), all.ids[i]);
  }

  Dispatched EndDispatch(DispatchHandle* handle) override {
    auto& state = handle->Get<NoneState>();
    const TopK& all = Routing(*handle, state);
    return {.layout = DispatchLayout::kStandard,
            .rows = reinterpret_cast<const std::byte*>(state.x),
            .num_rows = all.tokens,
            .topk_ids = state.local_ids.data(),
            .topk_stride = all.k,
            .k = all.k};
  }

  void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) override {
    handle->Get<NoneState>().outputs = experts;
  }

  void EndCombine(DispatchHandle* handle, float* y) override {
    auto& state = handle->Get<NoneState>();
    const TopK& all = Routing(*handle, state);
    const auto output_of = [&](int64_t t, int j) -> SlotOutput {
      const int32_t r = state.outputs.position[t * all.k + j];
      if (r < 0) return {};
      return state.outputs.rows + r * hidden_;
    };
    const auto sum = [&](float* to) {
      SumTopK(all, {all.tokens}, output_dtype_, hidden_, output_of, pool_, to);
    };
    if (!gathers_) return sum(y);
    state.sums.resize(all.tokens * hidden_);
    sum(state.sums.data());
    ep_.ReduceScatterV(state.sums.data(), y, SizesOf(&state, hidden_));
  }

 private:
  const TopK& Routing(const DispatchHandle& handle, const NoneState& state) const {
    return gathers_ ? state.topk : *handle.topk;
  }

  std::span<const size_t> SizesOf(NoneState* state, size_t per_token) const {
    state->sizes.resize(state->tokens.size());
    for (size_t r = 0; r < state->tokens.size(); ++r)
      state->sizes[r] = state->tokens[r] * per_token;
    return state->sizes;
  }

  void GatherAll(const float* x, const TopK& topk, NoneState* state) {
    const auto mine = static_cast<int32_t>(topk.tokens);
    state->tokens.resize(ep_.size());
    ep_.AllGather(&mine, state->tokens.data(), sizeof mine);
    TopK& all = state->topk;
    all.tokens = std::accumulate(state->tokens.begin(), state->tokens.end(), int64_t{0});
    all.k = topk.k;
    all.ids.resize(all.tokens * all.k);
    all.weights.resize(all.tokens * all.k);
    state->rows.resize(all.tokens * hidden_);
    ep_.AllGatherV(topk.ids.data(), all.ids.data(), SizesOf(state, all.k * sizeof(int32_t)));
    ep_.AllGatherV(topk.weights.data(), all.weights.data(), SizesOf(state, all.k * sizeof(float)));
    ep_.AllGatherV(x, state->rows.data(), SizesOf(state, hidden_ * sizeof(float)));
    state->x = state->rows.data();
  }

  // Rounds the rows of state->x: converts them to the format of sent rows and back. Stores them in
  // state->rows.
  void RoundRows(int64_t tokens, NoneState* state) {
    const float* from = state->x;
    state->rows.resize(tokens * hidden_);
    const auto body = [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        RoundRow(format_, from + t * hidden_, hidden_, state->rows.data() + t * hidden_);
    };
    pool_.RunRanges(tokens, kRowGrain, std::cref(body));
    state->x = state->rows.data();
  }

  ThreadPool& pool_;
  Communicator& ep_;
  const int64_t hidden_, max_tokens_;
  const RowFormat format_;
  const DType output_dtype_;
  const bool gathers_;
  const ExpertMap& experts_;
};

}  // namespace

DispatcherBackend NoneBackend() {
  return {.make =
              [](const DispatcherContext& context) {
                return std::make_unique<NoneDispatcher>(context);
              },
          .symmetric_bytes = [](const MoeOptions&, const ExchangeShape&) { return size_t{0}; },
          .summary = "collectives: every rank computes its experts for all tokens"};
}

}  // namespace switchyard
