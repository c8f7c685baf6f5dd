#include "moe/dispatchers/deepep_low_latency.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/error.h"

namespace switchyard {

DeepEpLowLatency::Buffers::Buffers(const MoeOptions& options, const ExchangeShape& shape)
    : sent(shape, std::min<int64_t>(options.max_dispatch_tokens_per_rank, shape.max_tokens), &plan),
      returned(shape, sent.capacity(), &plan),
      expert_counts(plan.Add("expert counts", sizeof(int32_t) * shape.ep * shape.local_experts)),
      places(plan.Add("places", sizeof(Place) * shape.local_experts * shape.ep * sent.capacity())) {
}

ExchangeMemory DeepEpLowLatency::Memory(const MoeOptions& options, const ExchangeShape& shape) {
  return ExchangeSlots::Memory("deepep low_latency", shape.ep, kOutputs + shape.combine_parts,
                               Buffers(options, shape).plan);
}

DeepEpLowLatency::DeepEpLowLatency(const DispatcherContext& context)
    : pool_(context.pool),
      local_experts_(context.shape.local_experts),
      k_(context.shape.k),
      experts_(context.experts),
      buffers_(context.options, context.shape),
      slots_(context.comm, "deepep low_latency", kOutputs + context.shape.combine_parts,
             buffers_.plan.bytes(), context.elastic) {}

void DeepEpLowLatency::CheckTokens(int64_t tokens) const {
  if (tokens > buffers_.sent.capacity())
    throw Resource("deepep low_latency: {} tokens on one rank exceed the capacity of {}", tokens,
                   buffers_.sent.capacity());
}

std::byte* DeepEpLowLatency::InputRows(int64_t tokens, bool, DispatchHandle* handle) {
  CheckTokens(tokens);
  return buffers_.sent.InputRows(slots_, &handle->Get<State>().sent);
}

void DeepEpLowLatency::BeginDispatch(const float* x, const TopK& topk, bool,
                                     DispatchHandle* handle) {
  CheckTokens(topk.tokens);
  CHECK_EQ(topk.k, k_);
  auto& state = handle->Get<State>();
  handle->layout = DispatchLayout::kLowLatency;
  handle->topk = &topk;
  buffers_.sent.Begin(slots_, experts_, x, topk, pool_, &state.sent);
  ListValidPlaces(&state);
  SendPlaces(state);
  buffers_.sent.Send(slots_, state.sent, pool_);
  slots_.RaiseAll(state.sent.use, kRows);
}

void DeepEpLowLatency::BeginDispatchAgain(const float* x, bool, DispatchHandle* handle) {
  auto& state = handle->Get<State>();
  buffers_.sent.BeginAgain(slots_, x, *handle->topk, pool_, &state.sent);
  buffers_.sent.Send(slots_, state.sent, pool_);
  slots_.RaiseAll(state.sent.use, kRows);
}

void DeepEpLowLatency::ListValidPlaces(State* state) const {
  const DispatchRows::Batch& sent = state->sent;
  const int64_t ranks = slots_.ranks(), capacity = buffers_.sent.capacity();
  state->expert_counts.assign(ranks * local_experts_, 0);
  state->places.resize(ranks * local_experts_ * capacity);
  for (int32_t output = 0; output < static_cast<int32_t>(sent.owners.size()); ++output) {
    const int32_t owner = sent.owners[output];
    if (owner < 0) continue;
    const int64_t expert = owner * local_experts_ + sent.local_ids[output];
    const int32_t i = state->expert_counts[expert]++;
    // An expert has at most as many rows as there are tokens, because a router selects an expert at
    // most once per token.
    CHECK_LT(i, capacity);
    state->places[expert * capacity + i] = {sent.order[output / k_ * ranks + owner], output};
  }
}

// Writes all counts in every round, including zeros, so that no count of an earlier round remains.
void DeepEpLowLatency::SendPlaces(const State& state) {
  const int me = slots_.rank();
  const auto write = [&](int dest, size_t offset, const auto* from, int64_t count) {
    if (count == 0) return;
    std::memcpy(slots_.At(state.sent.use, dest, offset), from, count * sizeof *from);
    slots_.Wrote(state.sent.use, dest, offset, count * sizeof *from);
  };
  for (int dest = 0; dest < slots_.ranks(); ++dest) {
    const int32_t* counts = state.expert_counts.data() + dest * local_experts_;
    write(dest, buffers_.expert_counts + me * local_experts_ * sizeof *counts, counts,
          local_experts_);
    const Place* places = state.places.data() + dest * local_experts_ * buffers_.sent.capacity();
    for (int64_t e = 0; e < local_experts_; ++e)
      write(dest, buffers_.places + FirstPlace(e, me) * sizeof(Place),
            places + e * buffers_.sent.capacity(), counts[e]);
  }
}

bool DeepEpLowLatency::Arrived(DispatchHandle* handle) {
  return slots_.AllReached(handle->Get<State>().sent.use, kRows);
}

Dispatched DeepEpLowLatency::EndDispatch(DispatchHandle* handle) {
  auto& state = handle->Get<State>();
  slots_.WaitAll(state.sent.use, kRows, "deepep dispatch rows");
  if (!state.sent.again) {
    buffers_.sent.Receive(slots_, &state.sent);
    ReceivePlaces(&state);
  }
  Dispatched in = buffers_.sent.Locate(slots_, &state.sent);
  in.layout = DispatchLayout::kLowLatency;
  in.sources = slots_.ranks();
  in.capacity = buffers_.sent.capacity();
  in.counts = state.counts.data();
  in.counts_stride = local_experts_;
  in.place_row = state.place_row.data();
  return in;
}

// Copies counts and places to memory of the batch, because the slot may be reused before the batch
// ends. A lost rank cannot overwrite this copy.
void DeepEpLowLatency::ReceivePlaces(State* state) const {
  const int ranks = slots_.ranks();
  const auto* counts =
      reinterpret_cast<const int32_t*>(slots_.Local(state->sent.use, buffers_.expert_counts));
  const auto* places =
      reinterpret_cast<const Place*>(slots_.Local(state->sent.use, buffers_.places));
  state->counts.assign(counts, counts + ranks * local_experts_);
  state->place_row.resize(FirstPlace(local_experts_, 0));
  state->place_slot.resize(state->place_row.size());
  for (int source = 0; source < ranks; ++source) {
    int32_t* from_source = state->counts.data() + source * local_experts_;
    if (!slots_.Active(source)) std::fill_n(from_source, local_experts_, 0);
    for (int64_t e = 0; e < local_experts_; ++e) {
      CHECK(from_source[e] >= 0 && from_source[e] <= buffers_.sent.capacity());
      const int64_t first = FirstPlace(e, source);
      for (int64_t p = first; p < first + from_source[e]; ++p) {
        const int32_t row = state->sent.begin[source] + places[p].row;
        CHECK(places[p].row >= 0 && row < state->sent.begin[source + 1]);
        const int32_t token = places[p].output / k_;
        CHECK(token >= 0 && token < buffers_.sent.capacity());
        state->place_row[p] = row;
        state->place_slot[p] = places[p].output % k_;
        state->sent.tokens[row] = token;
      }
    }
  }
}

std::span<std::byte* const> DeepEpLowLatency::OutputDestinations(const ExpertRows& experts,
                                                                 DispatchHandle* handle) {
  auto& state = handle->Get<State>();
  std::vector<CombinedRows::Target>& targets = state.returned.targets;
  targets.assign(experts.num_rows, {});
  for (int64_t i = 0; i < experts.num_places; ++i) {
    const int32_t place = experts.places[i];
    targets[experts.place_rows[i]] = {state.place_row[place], state.place_slot[place]};
  }
  return buffers_.returned.Places(slots_, state.sent, &state.returned);
}

void DeepEpLowLatency::PrepareCombine(const ExpertRows& experts, DispatchHandle* handle) {
  auto& state = handle->Get<State>();
  if (!state.returned.left) OutputDestinations(experts, handle);
  buffers_.returned.Prepare(slots_, buffers_.sent, state.sent, experts, {0, experts.num_rows},
                            &state.returned, pool_);
}

void DeepEpLowLatency::BeginCombine(const ExpertRows& experts, DispatchHandle* handle) {
  auto& state = handle->Get<State>();
  if (!state.returned.prepared) PrepareCombine(experts, handle);
  for (int part = 0; part < combine_parts(); ++part)
    slots_.RaiseAll(state.sent.use, kOutputs + part);
}

void DeepEpLowLatency::BeginCombinePart(const ExpertRows& experts, const OutputPart& part,
                                        DispatchHandle* handle) {
  auto& state = handle->Get<State>();
  if (!state.returned.left) OutputDestinations(experts, handle);
  buffers_.returned.Prepare(slots_, buffers_.sent, state.sent, experts, part.rows, &state.returned,
                            pool_);
  slots_.RaiseAll(state.sent.use, kOutputs + part.index);
}

void DeepEpLowLatency::EndCombine(DispatchHandle* handle, float* y) {
  auto& state = handle->Get<State>();
  buffers_.returned.AwaitAndSum(slots_, kOutputs, "deepep combine rows", state.sent, *handle->topk,
                                experts_, &state.returned, pool_, y);
  slots_.Release(&state.sent.use);
}

}  // namespace switchyard
