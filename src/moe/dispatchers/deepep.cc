// All-to-all of CPU ranks in the modes of `--deepep-mode`. The layout is a policy
// (deepep_layouts.h).
#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "moe/dispatchers/builtin.h"
#include "moe/dispatchers/deepep_layouts.h"

namespace switchyard {
namespace {

constexpr char kCombine[] = "deepep combine rows";

// Each rank rounds every row once, into its own arena. It sends to every destination rank the
// number of rows (DispatchRows) and the layout's routing data. Counts are not exchanged before the
// rows, so dispatch has one phase. Ranks of the same host read the rows in place.
//
// Combine returns one row per (token, slot). The expert's rank writes it to [token, slot] of the
// source's arena, where the rows are summed. Summing on the expert's rank first would return min(k,
// P) rows per token instead of k. But the reduction order, and with it the last bits, would then
// depend on which experts share a rank. --moe-combine-rows rank selects these partial sums. With P
// ranks, at most min(k, P) rows per token are dispatched and k are combined. On average, 1 / P of
// them stay local. Outputs are rounded to the sent format before weighting.
//
// A pass in several rounds has one combine, if the outputs buffer has space for all its tokens
// (PassRounds). Each round writes its outputs to their place in the pass and raises the outputs
// flag. The flag signals that the next round may overwrite the rows, because the experts have read
// them. The sums are computed after the flag of the last round. With single-batch overlap the
// outputs have one flag for each part.
template <class Layout>
class DeepEpMode : public Dispatcher {
 public:
  explicit DeepEpMode(const DispatcherContext& context)
      : DeepEpMode(*context.comm.memory, context.comm.mesh.EpGroup(),
                   Layout::Rounds(context.options, context.shape), context.shape, context.experts,
                   context.pool,
                   {.elastic = context.elastic,
                    .device_ranks = context.options.host_experts
                                        ? context.comm.mesh.shape().attention_groups()
                                        : 0}) {}
  DeepEpMode(SymmetricMemory& memory, std::vector<int> group, const PassRounds& rounds,
             const ExchangeShape& shape, const ExpertMap& experts, ThreadPool& pool,
             const ExchangeSlots::Options& options)
      : pool_(pool),
        k_(shape.k),
        experts_(experts),
        buffers_(rounds, shape),
        slots_(memory, std::move(group), Layout::kName, kOutputs + shape.combine_parts,
               buffers_.plan.bytes(), options) {}
  static size_t Bytes(const PassRounds& rounds, const ExchangeShape& shape, int slots) {
    return ExchangeSlots::Bytes(shape.ep, kOutputs + shape.combine_parts,
                                Buffers(rounds, shape).plan.bytes(), slots);
  }
  // The place of each buffer, for a rank that takes part with kernels of its GPU.
  static DeepEpArena Arena(const PassRounds& rounds, const ExchangeShape& shape, int slots) {
    const Buffers buffers(rounds, shape);
    CHECK(shape.combine_rows == CombineRows::kSlot && shape.combine_parts == 1);
    return {.counts = buffers.plan.OffsetOf("counts"),
            .rows = buffers.plan.OffsetOf("rows"),
            .tags = buffers.plan.OffsetOf("tags"),
            .outputs = buffers.plan.OffsetOf("outputs"),
            .flags = buffers.plan.bytes(),
            .flag_stride = BufferPlan::kLine,
            .slot_bytes = ExchangeSlots::Bytes(shape.ep, kOutputs + 1, buffers.plan.bytes(), 1),
            .bytes = Bytes(rounds, shape, slots),
            .capacity = buffers.sent.capacity(),
            .row_bytes = shape.row_format.Bytes(shape.hidden),
            .rows_flag = kRows,
            .outputs_flag = kOutputs};
  }
  static ExchangeMemory Memory(const MoeOptions& options, const ExchangeShape& shape) {
    return ExchangeSlots::Memory(Layout::kName, shape.ep, kOutputs + shape.combine_parts,
                                 Buffers(Layout::Rounds(options, shape), shape).plan);
  }

  bool scatters() const override { return true; }
  std::vector<DispatchLayout> layouts() const override { return {Layout::kLayout}; }
  int64_t MaxTokens(bool) const override { return buffers_.sent.capacity(); }
  int64_t MaxCombineTokens(bool) const override { return buffers_.returned.capacity(); }

  std::byte* InputRows(int64_t tokens, bool, DispatchHandle* handle) override {
    CheckTokens(tokens, *handle);
    auto& state = handle->Get<State>();
    KeepSlot(*handle, &state);
    return buffers_.sent.InputRows(slots_, &state.sent);
  }
  void BeginDispatch(const float* x, const TopK& topk, bool, DispatchHandle* handle) override {
    CheckTokens(topk.tokens, *handle);
    CHECK_EQ(topk.k, k_);
    auto& state = handle->Get<State>();
    handle->layout = Layout::kLayout;
    handle->topk = &topk;
    if (!state.sent.placed) KeepSlot(*handle, &state);
    buffers_.sent.Begin(slots_, experts_, x, topk, pool_, &state.sent);
    buffers_.returned.Begin(handle->round, topk, state.sent, &state.returned);
    buffers_.layout.Send(slots_, state.sent, &state.routing);
    buffers_.sent.Send(slots_, state.sent, pool_);
    slots_.RaiseAll(state.sent.use, kRows);
  }
  void BeginDispatchAgain(const float* x, bool, DispatchHandle* handle) override {
    auto& state = handle->Get<State>();
    CHECK_EQ(state.returned.first_token, 0);
    buffers_.sent.BeginAgain(slots_, x, *handle->topk, pool_, &state.sent);
    buffers_.sent.Send(slots_, state.sent, pool_);
    slots_.RaiseAll(state.sent.use, kRows);
  }
  bool Arrived(DispatchHandle* handle) override {
    return slots_.AllReached(handle->Get<State>().sent.use, kRows);
  }
  Dispatched EndDispatch(DispatchHandle* handle) override {
    auto& state = handle->Get<State>();
    slots_.WaitAll(state.sent.use, kRows, "deepep dispatch rows");
    if (!state.sent.again) {
      buffers_.sent.Receive(slots_, &state.sent);
      // Copies the routing to memory of the batch, because the slot may be reused before the batch
      // ends. A lost rank cannot overwrite this copy.
      const int64_t tokens = std::min(buffers_.sent.capacity(),
                                      buffers_.returned.capacity() - state.returned.first_token);
      buffers_.layout.Receive(slots_, tokens, &state.sent, &state.routing);
    }
    Dispatched in = buffers_.sent.Locate(slots_, &state.sent);
    in.layout = Layout::kLayout;
    buffers_.layout.Describe(slots_, state.routing, &in);
    return in;
  }

  std::span<std::byte* const> OutputDestinations(const ExpertRows& experts,
                                                 DispatchHandle* handle) override {
    auto& state = handle->Get<State>();
    state.returned.targets.assign(experts.num_rows, {});
    buffers_.layout.Target(experts, state.sent, state.routing, &state.returned.targets);
    return buffers_.returned.Places(slots_, state.sent, &state.returned);
  }
  void PrepareCombine(const ExpertRows& experts, DispatchHandle* handle) override {
    Prepare(experts, {0, experts.num_rows}, handle);
  }
  void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) override {
    auto& state = handle->Get<State>();
    if (!state.returned.prepared) PrepareCombine(experts, handle);
    for (int part = 0; part < combine_parts(); ++part)
      slots_.RaiseAll(state.sent.use, kOutputs + part);
  }
  int combine_parts() const override { return buffers_.returned.parts(); }
  void BeginCombinePart(const ExpertRows& experts, const OutputPart& part,
                        DispatchHandle* handle) override {
    Prepare(experts, part.rows, handle);
    slots_.RaiseAll(handle->Get<State>().sent.use, kOutputs + part.index);
  }
  void EndCombine(DispatchHandle* handle, float* y) override {
    auto& state = handle->Get<State>();
    CHECK(handle->round.last);
    buffers_.returned.AwaitAndSum(slots_, kOutputs, kCombine, state.sent, *handle->topk, experts_,
                                  &state.returned, pool_, y);
    slots_.Release(&state.sent.use);
  }
  const std::byte* EndCombineBySlot(DispatchHandle* handle) override {
    auto& state = handle->Get<State>();
    CHECK(handle->round.last && handle->round.first_token == 0);
    buffers_.returned.AwaitAll(slots_, state.sent.use, kOutputs, kCombine);
    return buffers_.returned.OutputsBySlot(slots_, state.sent, &state.returned);
  }
  void ReleaseOutputs(DispatchHandle* handle) override {
    slots_.Release(&handle->Get<State>().sent.use);
  }

 private:
  enum Stage { kRows, kOutputs };  // kOutputs + p signals part p of the outputs

  // State of one batch.
  struct State {
    DispatchRows::Batch sent;
    typename Layout::Routing routing;
    CombinedRows::Batch returned;
  };

  struct Buffers {
    Buffers(const PassRounds& rounds, const ExchangeShape& shape)
        : sent(shape, rounds.dispatch_tokens, &plan),
          returned(shape, rounds.combine_tokens, &plan),
          layout(shape, sent, &plan) {}
    BufferPlan plan;
    DispatchRows sent;
    CombinedRows returned;
    Layout layout;
  };

  void CheckTokens(int64_t tokens, const DispatchHandle& handle) const {
    if (tokens > buffers_.sent.capacity())
      throw Resource("{}: {} tokens on one rank exceed the capacity of {}", Layout::kName, tokens,
                     buffers_.sent.capacity());
    if (const int64_t all = handle.round.first_token + tokens; all > buffers_.returned.capacity())
      throw Resource("{}: {} tokens on one rank exceed the capacity of one combine, {}",
                     Layout::kName, all, buffers_.returned.capacity());
  }
  // Keeps the slot of the batch for a later round of a combine. That round overwrites the rows and
  // routing of the previous round. So this first waits for the outputs flags, which peers raise
  // after they have read them.
  void KeepSlot(const DispatchHandle& handle, State* state) {
    if (handle.round.first_token == 0) return;
    buffers_.returned.AwaitAll(slots_, state->sent.use, kOutputs, kCombine);
    slots_.Advance(&state->sent.use);
    state->sent.keeps_slot = true;
  }
  void Prepare(const ExpertRows& experts, Range outputs, DispatchHandle* handle) {
    auto& state = handle->Get<State>();
    if (!state.returned.placed) OutputDestinations(experts, handle);
    buffers_.returned.Prepare(slots_, buffers_.sent, state.sent, experts, outputs, &state.returned,
                              pool_);
  }

  ThreadPool& pool_;
  const int k_;
  const ExpertMap& experts_;
  const Buffers buffers_;
  ExchangeSlots slots_;
};

using DeepEpNormal = DeepEpMode<NormalLayout>;
using DeepEpLowLatency = DeepEpMode<LowLatencyLayout>;

// Selects the normal or the low-latency mode for each batch. The handle of a batch stores the mode,
// so batches of both modes may be in flight.
class DeepEpAuto : public Dispatcher {
 public:
  explicit DeepEpAuto(const DispatcherContext& context) : normal_(context), low_latency_(context) {}
  static ExchangeMemory Memory(const MoeOptions& options, const ExchangeShape& shape) {
    ExchangeMemory both = DeepEpNormal::Memory(options, shape);
    both.parts.push_back(DeepEpLowLatency::Memory(options, shape).parts.front());
    return both;
  }

  bool scatters() const override { return true; }
  bool splits_mixed_batches() const override { return true; }
  std::vector<DispatchLayout> layouts() const override {
    return {DispatchLayout::kNormal, DispatchLayout::kLowLatency};
  }
  int64_t MaxTokens(bool decode) const override {
    return decode ? low_latency_.MaxTokens(decode) : normal_.MaxTokens(decode);
  }
  int64_t MaxCombineTokens(bool decode) const override {
    return decode ? low_latency_.MaxCombineTokens(decode) : normal_.MaxCombineTokens(decode);
  }

  std::byte* InputRows(int64_t tokens, bool decode, DispatchHandle* handle) override {
    handle->layout = decode ? DispatchLayout::kLowLatency : DispatchLayout::kNormal;
    return ModeOf(*handle).InputRows(tokens, decode, handle);
  }
  void BeginDispatch(const float* x, const TopK& topk, bool decode,
                     DispatchHandle* handle) override {
    handle->layout = decode ? DispatchLayout::kLowLatency : DispatchLayout::kNormal;
    ModeOf(*handle).BeginDispatch(x, topk, decode, handle);
  }
  // Uses the mode of the first dispatch, because that mode has the routing.
  void BeginDispatchAgain(const float* x, bool decode, DispatchHandle* handle) override {
    ModeOf(*handle).BeginDispatchAgain(x, decode, handle);
  }
  bool Arrived(DispatchHandle* handle) override { return ModeOf(*handle).Arrived(handle); }
  Dispatched EndDispatch(DispatchHandle* handle) override {
    return ModeOf(*handle).EndDispatch(handle);
  }
  std::span<std::byte* const> OutputDestinations(const ExpertRows& experts,
                                                 DispatchHandle* handle) override {
    return ModeOf(*handle).OutputDestinations(experts, handle);
  }
  void PrepareCombine(const ExpertRows& experts, DispatchHandle* handle) override {
    ModeOf(*handle).PrepareCombine(experts, handle);
  }
  void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) override {
    ModeOf(*handle).BeginCombine(experts, handle);
  }
  int combine_parts() const override { return normal_.combine_parts(); }
  void BeginCombinePart(const ExpertRows& experts, const OutputPart& part,
                        DispatchHandle* handle) override {
    ModeOf(*handle).BeginCombinePart(experts, part, handle);
  }
  void EndCombine(DispatchHandle* handle, float* y) override {
    ModeOf(*handle).EndCombine(handle, y);
  }

 private:
  Dispatcher& ModeOf(const DispatchHandle& handle) {
    if (handle.layout == DispatchLayout::kLowLatency) return low_latency_;
    return normal_;
  }

  DeepEpNormal normal_;
  DeepEpLowLatency low_latency_;
};

DispatcherBackend BackendOfMode(const std::string& mode) {
  if (mode == "normal") return BackendOf<Dispatcher, DeepEpNormal>("");
  if (mode == "low_latency") return BackendOf<Dispatcher, DeepEpLowLatency>("");
  CHECK(mode == "auto");
  return BackendOf<Dispatcher, DeepEpAuto>("");
}

ExchangeMemory Memory(const MoeOptions& options, const ExchangeShape& shape) {
  return BackendOfMode(options.deepep_mode).memory(options, shape);
}

}  // namespace

std::unique_ptr<Dispatcher> MakeDeepEpNormal(SymmetricMemory& memory, std::vector<int> group,
                                             const PassRounds& rounds, const ExchangeShape& shape,
                                             const ExpertMap& experts, ThreadPool& pool,
                                             const ExchangeSlots::Options& options) {
  return std::make_unique<DeepEpNormal>(memory, std::move(group), rounds, shape, experts, pool,
                                        options);
}

size_t DeepEpNormalBytes(const PassRounds& rounds, const ExchangeShape& shape, int slots) {
  return DeepEpNormal::Bytes(rounds, shape, slots);
}

DeepEpArena ArenaOfDeepEpNormal(const PassRounds& rounds, const ExchangeShape& shape) {
  return DeepEpNormal::Arena(rounds, shape, ExchangeSlots::kSlots);
}

DispatcherBackend DeepEpBackend() {
  return {
      .make =
          [](const DispatcherContext& context) {
            return BackendOfMode(context.options.deepep_mode).make(context);
          },
      .symmetric_bytes = [](const MoeOptions& options,
                            const ExchangeShape& shape) { return Memory(options, shape).bytes(); },
      .summary = "all-to-all through symmetric memory, modes normal, low_latency and auto",
      .memory = Memory,
      .combines_by_rank = true,
      .combines_in_parts = true};
}

}  // namespace switchyard
