// A dispatcher on symmetric memory. Every rank publishes its tokens in a mailbox in its own arena.
// Every rank reads the rows for its experts from all mailboxes, and writes the outputs directly
// into the arenas of the tokens' ranks.
#include "mailbox.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/rows.h"

namespace {

using namespace switchyard;

// Offsets in a buffer slot of the exchange. ExchangeSlots describes slots and their reuse.
struct Buffers {
  Buffers(const MoeOptions&, const ExchangeShape& shape) : capacity(shape.max_tokens) {
    routing = plan.Add("routing", sizeof(int32_t) * (1 + capacity * shape.k));
    rows = plan.Add("rows", shape.row_format.Bytes(shape.hidden) * capacity);
    outputs = plan.Add("outputs", OutputBytes(shape) * capacity * shape.k);
  }
  static int64_t OutputBytes(const ExchangeShape& shape) {
    return shape.hidden * static_cast<int64_t>(SizeOf(shape.output_dtype));
  }

  BufferPlan plan;
  int64_t capacity;  // tokens of one rank
  size_t routing;    // [1 + capacity · k] int32: the number of tokens, then their expert ids
  size_t rows;       // [capacity, H]
  size_t outputs;    // [capacity, k, H], written by the ranks of the experts
};

// All state of one batch, so that several batches may be in flight.
struct State {
  SlotUse use;
  std::vector<int32_t> begin;      // [ranks + 1] first row of each source
  std::vector<int32_t> local_ids;  // [rows, k] −1 for experts of other ranks
  std::vector<std::byte> rows;     // [rows, H] of all sources
};

class Mailbox : public Dispatcher {
 public:
  explicit Mailbox(const DispatcherContext& context)
      : pool_(context.pool),
        hidden_(context.shape.hidden),
        k_(context.shape.k),
        format_(context.shape.row_format),
        output_dtype_(context.shape.output_dtype),
        row_bytes_(format_.Bytes(hidden_)),
        output_bytes_(Buffers::OutputBytes(context.shape)),
        experts_(context.experts),
        buffers_(context.options, context.shape),
        slots_(context.comm, "mailbox", kNumStages, buffers_.plan.bytes()) {}

  bool scatters() const override { return true; }
  std::vector<DispatchLayout> layouts() const override { return {DispatchLayout::kStandard}; }
  int64_t MaxTokens(bool) const override { return buffers_.capacity; }

  void BeginDispatch(const float* x, const TopK& topk, bool, DispatchHandle* handle) override {
    auto& state = handle->Get<State>();
    slots_.Take(&state.use);
    handle->layout = DispatchLayout::kStandard;
    handle->topk = &topk;
    auto* routing = reinterpret_cast<int32_t*>(slots_.Local(state.use, buffers_.routing));
    routing[0] = static_cast<int32_t>(topk.tokens);
    std::ranges::copy(topk.ids, routing + 1);
    for (int64_t t = 0; t < topk.tokens; ++t)
      StoreRow(format_, x + t * hidden_, hidden_,
               slots_.Local(state.use, buffers_.rows + t * row_bytes_));
    slots_.RaiseAll(state.use, kRows);
  }

  bool Arrived(DispatchHandle* handle) override {
    return slots_.AllReached(handle->Get<State>().use, kRows);
  }

  Dispatched EndDispatch(DispatchHandle* handle) override {
    auto& state = handle->Get<State>();
    slots_.WaitAll(state.use, kRows, "mailbox dispatch");
    state.begin.assign(1, 0);
    state.local_ids.clear();
    state.rows.clear();
    for (int source = 0; source < slots_.ranks(); ++source) Collect(source, &state);
    return {.layout = DispatchLayout::kStandard,
            .rows = state.rows.data(),
            .format = format_,
            .num_rows = state.begin.back(),
            .topk_ids = state.local_ids.data(),
            .topk_stride = k_,
            .k = k_};
  }

  void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) override {
    auto& state = handle->Get<State>();
    for (int source = 0; source < slots_.ranks(); ++source) {
      const int32_t first = state.begin[source], end = state.begin[source + 1];
      for (int64_t i = 0; i < int64_t{end - first} * k_; ++i) {
        const int32_t r = experts.position[first * k_ + i];
        if (r < 0) continue;
        const size_t place = buffers_.outputs + i * output_bytes_;
        StoreRow(output_dtype_, experts.rows + r * hidden_, hidden_,
                 slots_.At(state.use, source, place));
        slots_.Wrote(state.use, source, place, output_bytes_);
      }
    }
    slots_.RaiseAll(state.use, kOutputs);
  }

  // Sums the top-k slots of a token in slot order, in float32, at the token's rank. So results do
  // not depend on the placement of experts.
  void EndCombine(DispatchHandle* handle, float* y) override {
    auto& state = handle->Get<State>();
    const TopK& topk = *handle->topk;
    slots_.WaitAll(state.use, kOutputs, "mailbox combine");
    const std::byte* outputs = slots_.Local(state.use, buffers_.outputs);
    std::fill_n(y, topk.tokens * hidden_, 0.0f);
    pool_.RunRanges(topk.tokens, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * k_; i < end * k_; ++i)
        if (topk.ids[i] >= 0)
          AddWeightedRow(output_dtype_, outputs + i * output_bytes_, topk.weights[i], hidden_,
                         y + i / k_ * hidden_);
    });
    slots_.Release(&state.use);
  }

 private:
  enum Stage { kRows, kOutputs, kNumStages };

  // Appends the rows and routing of a source's mailbox to `state`.
  void Collect(int source, State* state) {
    constexpr const char* kWhat = "mailbox dispatch";
    slots_.Fetch(state->use, source, buffers_.routing,
                 sizeof(int32_t) * (1 + buffers_.capacity * k_), kWhat);
    const auto* routing =
        reinterpret_cast<const int32_t*>(slots_.At(state->use, source, buffers_.routing));
    const int64_t tokens = routing[0];
    slots_.Fetch(state->use, source, buffers_.rows, tokens * row_bytes_, kWhat);
    const std::byte* rows = slots_.At(state->use, source, buffers_.rows);
    state->rows.insert(state->rows.end(), rows, rows + tokens * row_bytes_);
    for (int64_t i = 0; i < tokens * k_; ++i)
      state->local_ids.push_back(experts_.LocalIdOn(slots_.rank(), routing[1 + i]));
    state->begin.push_back(state->begin.back() + static_cast<int32_t>(tokens));
  }

  ThreadPool& pool_;
  const int64_t hidden_;
  const int k_;
  const RowFormat format_;
  const DType output_dtype_;
  const int64_t row_bytes_, output_bytes_;
  const ExpertMap& experts_;
  const Buffers buffers_;
  ExchangeSlots slots_;
};

}  // namespace

void AddMailbox(MoeBackends& backends) {
  backends.dispatchers.Add(
      "mailbox", {.make = [](const DispatcherContext& c) { return std::make_unique<Mailbox>(c); },
                  .symmetric_bytes =
                      [](const MoeOptions& options, const ExchangeShape& shape) {
                        return ExchangeSlots::Bytes(shape.ep, /*num_stages=*/2,
                                                    Buffers(options, shape).plan.bytes());
                      },
                  .summary = "every rank reads the tokens of all ranks from their arenas"});
}
