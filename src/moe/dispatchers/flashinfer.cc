#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "core/check.h"
#include "core/error.h"
#include "moe/dispatchers/builtin.h"
#include "moe/dispatchers/combine.h"
#include "moe/dispatchers/combined_rows.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/dispatchers/published_rows.h"
#include "moe/dispatchers/rounds.h"
#include "moe/runners/expert_parts.h"
#include "moe/scratch.h"

namespace switchyard {
namespace {

constexpr char kDispatch[] = "flashinfer dispatch rows";
constexpr char kCombine[] = "flashinfer combine rows";

// Sizes, and offsets of buffers in a slot.
struct Buffers {
  Buffers(const MoeOptions& options, const ExchangeShape& shape)
      : published(shape, TokensPerRound(options, shape), &plan) {
    // Maximum outputs per token and rank.
    const int64_t most = std::min<int64_t>(shape.k, shape.local_experts);
    outputs_capacity = (shape.ep - 1) * published.capacity() * most;
    output_begins = plan.Add("output begins", sizeof(int32_t) * shape.ep);
    outputs = plan.Add("outputs", shape.hidden * SizeOf(shape.output_dtype) * outputs_capacity);
  }

  BufferPlan plan;
  PublishedRows published;
  int64_t outputs_capacity = 0;
  size_t output_begins = 0;  // [P] i32 index of the first output for each source
  size_t outputs = 0;        // [outputs_capacity, H]
};

// State of one batch. It is kept after the batch has ended, for a second dispatch with the same
// routing.
struct State {
  SlotUse use;
  bool again = false;  // whether the dispatch reuses the routing of the previous one
  // State as a source rank. `output_order`: index of the output of (token, slot) among all outputs
  // that the expert's rank publishes for this rank. `output_counts`: number of these outputs for
  // each rank; this rank's own outputs are not counted.
  const float* x = nullptr;            // [tokens, H]
  std::vector<int32_t> output_order;   // [tokens, k]
  std::vector<int32_t> output_counts;  // [P]
  OwnOutputs own_outputs;
  std::vector<const std::byte*> outputs;  // [P] address of the first output of each rank
  TokensByPart by_part;                   // own tokens by part; used if there are several parts

  // State as a rank of experts: rows [begin[s], begin[s + 1]) are from source s.
  std::vector<int32_t> begin;         // [P + 1]
  std::vector<int32_t> tokens;        // [rows] token index at its source
  std::vector<int32_t> local_ids;     // [rows, k]
  std::vector<int32_t> row_at;        // [rows] as in Dispatched
  std::vector<int32_t> output_begin;  // [rows + 1] index of each row's first published output
  Scratch<std::byte> rows;            // rows that were pulled from other ranks
};

class FlashInfer : public Dispatcher {
 public:
  explicit FlashInfer(const DispatcherContext& context)
      : pool_(context.pool),
        hidden_(context.shape.hidden),
        k_(context.shape.k),
        format_(context.shape.row_format),
        output_dtype_(context.shape.output_dtype),
        output_bytes_(hidden_ * SizeOf(output_dtype_)),
        experts_(context.experts),
        parts_(context.shape.local_experts, context.shape.combine_parts),
        buffers_(context.options, context.shape),
        slots_(context.comm, "flashinfer", kOutputs + parts_.count(), buffers_.plan.bytes()) {}

  static ExchangeMemory Memory(const MoeOptions& options, const ExchangeShape& shape) {
    return ExchangeSlots::Memory("flashinfer", shape.ep, kOutputs + shape.combine_parts,
                                 Buffers(options, shape).plan);
  }

  bool scatters() const override { return true; }
  std::vector<DispatchLayout> layouts() const override { return {DispatchLayout::kNormal}; }
  int64_t MaxTokens(bool) const override { return buffers_.published.capacity(); }

  void BeginDispatch(const float* x, const TopK& topk, bool, DispatchHandle* handle) override {
    if (topk.tokens > buffers_.published.capacity())
      throw Resource("flashinfer: {} tokens on one rank exceed the capacity of {}", topk.tokens,
                     buffers_.published.capacity());
    CHECK_EQ(topk.k, k_);
    auto& state = handle->Get<State>();
    slots_.Take(&state.use);
    handle->layout = DispatchLayout::kNormal;
    handle->topk = &topk;
    state.again = false;
    buffers_.published.PublishRouting(slots_, state.use, topk);
    PublishRows(x, topk, &state);
    OrderOutputs(topk, &state);
  }

  void BeginDispatchAgain(const float* x, bool, DispatchHandle* handle) override {
    auto& state = handle->Get<State>();
    CHECK_EQ(static_cast<int>(state.output_counts.size()), slots_.ranks());
    slots_.Take(&state.use);
    state.again = true;
    PublishRows(x, *handle->topk, &state);
  }

  bool Arrived(DispatchHandle* handle) override {
    return slots_.AllReached(handle->Get<State>().use, kRows);
  }

  Dispatched EndDispatch(DispatchHandle* handle) override {
    auto& state = handle->Get<State>();
    slots_.WaitAll(state.use, kRows, kDispatch);
    if (!state.again) FindRows(&state);
    PullRows(&state);
    return {.layout = DispatchLayout::kNormal,
            .rows = state.rows.data(),
            .format = format_,
            .num_rows = state.begin.back(),
            .row_at = state.row_at.data(),
            .own_x = state.x,
            .topk_ids = state.local_ids.data(),
            .topk_stride = k_,
            .k = k_};
  }

  void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) override {
    auto& state = handle->Get<State>();
    PublishOutputs(experts, {.rows = {0, experts.num_rows}}, state);
    for (int part = 0; part < parts_.count(); ++part) slots_.RaiseAll(state.use, kOutputs + part);
    KeepOwnOutputs(experts, handle->topk->tokens, &state);
  }

  int combine_parts() const override { return parts_.count(); }
  void BeginCombinePart(const ExpertRows& experts, const OutputPart& part,
                        DispatchHandle* handle) override {
    auto& state = handle->Get<State>();
    PublishOutputs(experts, part, state);
    slots_.RaiseAll(state.use, kOutputs + part.index);
    if (part.index == parts_.count() - 1) KeepOwnOutputs(experts, handle->topk->tokens, &state);
  }

  void EndCombine(DispatchHandle* handle, float* y) override {
    auto& state = handle->Get<State>();
    const TopK& topk = *handle->topk;
    const OwnOutputs& own = state.own_outputs;
    const auto output_of = [&](int64_t t, int j) -> SlotOutput {
      const int32_t place = OutputPlace(t, j, k_), expert = topk.ids[place];
      if (expert < 0) return {};
      if (own.row_for[place] >= 0) return own.rows + own.row_for[place] * hidden_;
      return state.outputs[experts_.Owner(expert)] + state.output_order[place] * output_bytes_;
    };
    // Outputs on other hosts are fetched at once, after the last part.
    const bool by_part = parts_.count() > 1 && slots_.AllMapped();
    if (by_part) SortTokens(topk, &state);
    for (int part = 0; part < parts_.count(); ++part) {
      slots_.WaitAll(state.use, kOutputs + part, kCombine);
      const bool last = part == parts_.count() - 1;
      if (by_part ? part == 0 : last) FindOutputs(&state);
      if (!by_part && !last) continue;
      SumTopK(topk, by_part ? state.by_part.Of(part) : TokenList{topk.tokens}, output_dtype_,
              hidden_, output_of, pool_, y);
    }
    slots_.Release(&state.use);
  }

 private:
  enum Stage { kRows, kOutputs };  // kOutputs + p signals part p of the outputs

  void PublishRows(const float* x, const TopK& topk, State* state) {
    state->x = x;
    buffers_.published.PublishRows(slots_, state->use, x, topk, experts_, pool_);
    slots_.RaiseAll(state->use, kRows);
  }

  void OrderOutputs(const TopK& topk, State* state) const {
    state->output_counts.assign(slots_.ranks(), 0);
    state->output_order.assign(topk.ids.size(), -1);
    for (size_t i = 0; i < topk.ids.size(); ++i) {
      if (topk.ids[i] < 0) continue;
      const int owner = experts_.Owner(topk.ids[i]);
      if (owner != slots_.rank()) state->output_order[i] = state->output_counts[owner]++;
    }
  }

  // Reads the routing of all sources and selects the rows of this rank's experts.
  void FindRows(State* state) {
    const int me = slots_.rank();
    state->begin.assign(1, 0);
    state->output_begin.assign(1, 0);
    state->tokens.clear();
    state->local_ids.clear();
    state->row_at.clear();
    int32_t pulled = 0;
    for (int source = 0; source < slots_.ranks(); ++source) {
      const auto routing = buffers_.published.ReadRouting(slots_, state->use, source, kDispatch);
      for (int32_t t = 0; t < routing.tokens; ++t) {
        const int32_t* ids = routing.ids + int64_t{t} * k_;
        const auto outputs = static_cast<int32_t>(std::count_if(
            ids, ids + k_, [&](int32_t id) { return experts_.LocalIdOn(me, id) >= 0; }));
        if (outputs == 0) continue;
        state->tokens.push_back(t);
        state->row_at.push_back(source == me ? ~t : pulled++);
        state->output_begin.push_back(state->output_begin.back() + (source == me ? 0 : outputs));
        for (int j = 0; j < k_; ++j) state->local_ids.push_back(experts_.LocalIdOn(me, ids[j]));
      }
      state->begin.push_back(static_cast<int32_t>(state->tokens.size()));
    }
    CHECK_LE(state->output_begin.back(), buffers_.outputs_capacity);
  }

  void PullRows(State* state) {
    const std::vector<int32_t>& begins = state->begin;
    const int me = slots_.rank();
    const int64_t pulled = begins.back() - (begins[me + 1] - begins[me]);
    std::byte* rows = state->rows.Get(pulled * buffers_.published.row_bytes());
    for (int source = 0; source < slots_.ranks(); ++source)
      if (source != me) PullRowsOf(source, *state, rows);
  }

  void PullRowsOf(int source, const State& state, std::byte* rows) {
    const PublishedRows& published = buffers_.published;
    const int64_t first = state.begin[source], count = state.begin[source + 1] - first;
    published.FetchRows(slots_, state.use, source, std::span(state.tokens).subspan(first, count),
                        kDispatch);
    const int64_t row_bytes = published.row_bytes();
    const auto body = [&](int64_t begin, int64_t end) {
      for (int64_t n = first + begin; n < first + end; ++n)
        std::memcpy(rows + state.row_at[n] * row_bytes,
                    published.Row(slots_, state.use, source, state.tokens[n]), row_bytes);
    };
    pool_.RunRanges(count, kRowGrain, std::cref(body));
  }

  // Publishes the outputs of a part. Peers may read output_begins once the flag of the first part
  // is raised.
  void PublishOutputs(const ExpertRows& experts, const OutputPart& part, const State& state) const {
    auto* output_begins =
        reinterpret_cast<int32_t*>(slots_.Local(state.use, buffers_.output_begins));
    for (int source = 0; part.index == 0 && source < slots_.ranks(); ++source)
      output_begins[source] = state.output_begin[state.begin[source]];
    std::byte* outputs = slots_.Local(state.use, buffers_.outputs);
    const auto body = [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        if (state.row_at[n] < 0) continue;
        int64_t output = state.output_begin[n];
        for (int j = 0; j < k_; ++j) {
          const int64_t r = experts.position[n * k_ + j];
          if (r < 0) continue;
          std::byte* to = outputs + output++ * output_bytes_;
          if (r >= part.rows.begin && r < part.rows.end)
            StoreRow(output_dtype_, experts.rows + r * hidden_, hidden_, to);
        }
      }
    };
    pool_.RunRanges(state.begin.back(), kRowGrain, std::cref(body));
  }

  void KeepOwnOutputs(const ExpertRows& experts, int64_t tokens, State* state) const {
    OwnOutputs& own = state->own_outputs;
    own.rows = experts.rows;
    own.row_for.assign(tokens * k_, -1);
    const int me = slots_.rank();
    for (int64_t n = state->begin[me]; n < state->begin[me + 1]; ++n)
      std::copy_n(experts.position + n * k_, k_,
                  own.row_for.begin() + OutputPlace(state->tokens[n], 0, k_));
  }

  void SortTokens(const TopK& topk, State* state) const {
    state->by_part.Sort(topk.tokens, parts_.count(), [&](int64_t t) {
      int last = 0;
      for (int64_t i = t * k_; i < (t + 1) * k_; ++i)
        if (topk.ids[i] >= 0) last = std::max(last, parts_.PartOf(experts_.LocalId(topk.ids[i])));
      return last;
    });
  }

  // Computes where the outputs for this rank are in the arena of each rank, and makes them
  // readable.
  void FindOutputs(State* state) {
    state->outputs.assign(slots_.ranks(), nullptr);
    for (int owner = 0; owner < slots_.ranks(); ++owner) {
      const int64_t count = state->output_counts[owner];
      if (count == 0) continue;
      const size_t begin_at = buffers_.output_begins + sizeof(int32_t) * slots_.rank();
      slots_.Fetch(state->use, owner, begin_at, sizeof(int32_t), kCombine);
      int32_t begin;
      std::memcpy(&begin, slots_.At(state->use, owner, begin_at), sizeof begin);
      CHECK(begin >= 0 && begin + count <= buffers_.outputs_capacity);
      const size_t first = buffers_.outputs + begin * output_bytes_;
      slots_.Fetch(state->use, owner, first, count * output_bytes_, kCombine);
      state->outputs[owner] = slots_.At(state->use, owner, first);
    }
  }

  ThreadPool& pool_;
  const int64_t hidden_;
  const int k_;
  const RowFormat format_;
  const DType output_dtype_;
  const int64_t output_bytes_;
  const ExpertMap& experts_;
  const ExpertParts parts_;
  const Buffers buffers_;
  ExchangeSlots slots_;
};

}  // namespace

DispatcherBackend FlashInferBackend() {
  DispatcherBackend backend = BackendOf<Dispatcher, FlashInfer>(
      "one-sided: sources publish rows and routing, experts' ranks pull rows");
  backend.combines_in_parts = true;
  return backend;
}

}  // namespace switchyard
