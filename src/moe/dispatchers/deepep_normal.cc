#include "moe/dispatchers/deepep_normal.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

constexpr char kCombine[] = "deepep combine rows";

}  // namespace

DeepEpNormal::Buffers::Buffers(const PassRounds& rounds, const ExchangeShape& shape)
    : sent(shape, rounds.dispatch_tokens, &plan),
      returned(shape, rounds.combine_tokens, &plan),
      tags(plan.Add("tags", sizeof(int32_t) * (1 + shape.k) * shape.ep * sent.capacity())) {}

ExchangeMemory DeepEpNormal::Memory(const MoeOptions& options, const ExchangeShape& shape) {
  return ExchangeSlots::Memory("deepep normal", shape.ep, kOutputs + shape.combine_parts,
                               Buffers(RoundsOfPass(options, shape), shape).plan);
}

DeepEpNormal::DeepEpNormal(const DispatcherContext& context)
    : DeepEpNormal(*context.comm.memory, context.comm.mesh.EpGroup(),
                   RoundsOfPass(context.options, context.shape), context.shape, context.experts,
                   context.pool, {.elastic = context.elastic}) {}

DeepEpNormal::DeepEpNormal(SymmetricMemory& memory, std::vector<int> group,
                           const PassRounds& rounds, const ExchangeShape& shape,
                           const ExpertMap& experts, ThreadPool& pool,
                           const ExchangeSlots::Options& options)
    : pool_(pool),
      k_(shape.k),
      tag_size_(1 + shape.k),
      experts_(experts),
      buffers_(rounds, shape),
      slots_(memory, std::move(group), "deepep normal", kOutputs + shape.combine_parts,
             buffers_.plan.bytes(), options) {}

size_t DeepEpNormal::Bytes(const PassRounds& rounds, const ExchangeShape& shape, int slots) {
  return ExchangeSlots::Bytes(shape.ep, kOutputs + shape.combine_parts,
                              Buffers(rounds, shape).plan.bytes(), slots);
}

void DeepEpNormal::CheckTokens(int64_t tokens, const DispatchHandle& handle) const {
  if (tokens > buffers_.sent.capacity())
    throw Resource("deepep normal: {} tokens on one rank exceed the capacity of {}", tokens,
                   buffers_.sent.capacity());
  if (const int64_t all = handle.round.first_token + tokens; all > buffers_.returned.capacity())
    throw Resource("deepep normal: {} tokens on one rank exceed the capacity of one combine, {}",
                   all, buffers_.returned.capacity());
}

// Keeps the slot of the batch for a later round of a combine. That round overwrites the rows and
// routing of the previous round. So this first waits for the outputs flags, which peers raise after
// they have read them.
void DeepEpNormal::KeepSlot(const DispatchHandle& handle, State* state) {
  if (handle.round.first_token == 0) return;
  buffers_.returned.AwaitAll(slots_, state->sent.use, kOutputs, kCombine);
  slots_.Advance(&state->sent.use);
  state->sent.keeps_slot = true;
}

std::byte* DeepEpNormal::InputRows(int64_t tokens, bool, DispatchHandle* handle) {
  CheckTokens(tokens, *handle);
  auto& state = handle->Get<State>();
  KeepSlot(*handle, &state);
  return buffers_.sent.InputRows(slots_, &state.sent);
}

void DeepEpNormal::BeginDispatch(const float* x, const TopK& topk, bool, DispatchHandle* handle) {
  CheckTokens(topk.tokens, *handle);
  CHECK_EQ(topk.k, k_);
  auto& state = handle->Get<State>();
  handle->layout = DispatchLayout::kNormal;
  handle->topk = &topk;
  if (!state.sent.placed) KeepSlot(*handle, &state);
  buffers_.sent.Begin(slots_, experts_, x, topk, pool_, &state.sent);
  buffers_.returned.Begin(handle->round, topk, state.sent, &state.returned);
  SendMetadata(state);
  buffers_.sent.Send(slots_, state.sent, pool_);
  slots_.RaiseAll(state.sent.use, kRows);
}

void DeepEpNormal::BeginDispatchAgain(const float* x, bool, DispatchHandle* handle) {
  auto& state = handle->Get<State>();
  CHECK_EQ(state.returned.first_token, 0);
  buffers_.sent.BeginAgain(slots_, x, *handle->topk, pool_, &state.sent);
  buffers_.sent.Send(slots_, state.sent, pool_);
  slots_.RaiseAll(state.sent.use, kRows);
}

void DeepEpNormal::WriteTags(const DispatchRows::Batch& sent, int dest, int32_t* tags) const {
  const int ranks = slots_.ranks();
  const auto tokens = static_cast<int32_t>(sent.order.size() / ranks);
  for (int32_t t = 0; t < tokens; ++t) {
    const int64_t order = sent.order[int64_t{t} * ranks + dest];
    if (order < 0) continue;
    int32_t* tag = tags + order * tag_size_;
    tag[0] = t;
    const int32_t* owners = sent.owners.data() + int64_t{t} * k_;
    const int32_t* local_ids = sent.local_ids.data() + int64_t{t} * k_;
    for (int j = 0; j < k_; ++j) tag[1 + j] = owners[j] == dest ? local_ids[j] : -1;
  }
}

void DeepEpNormal::SendMetadata(const State& state) {
  const int me = slots_.rank();
  for (int dest = 0; dest < slots_.ranks(); ++dest) {
    if (dest == me) continue;
    const size_t offset = TagOffset(me);
    WriteTags(state.sent, dest,
              reinterpret_cast<int32_t*>(slots_.At(state.sent.use, dest, offset)));
    slots_.Wrote(state.sent.use, dest, offset,
                 state.sent.counts[dest] * tag_size_ * sizeof(int32_t));
  }
}

bool DeepEpNormal::Arrived(DispatchHandle* handle) {
  return slots_.AllReached(handle->Get<State>().sent.use, kRows);
}

Dispatched DeepEpNormal::EndDispatch(DispatchHandle* handle) {
  auto& state = handle->Get<State>();
  slots_.WaitAll(state.sent.use, kRows, "deepep dispatch rows");
  if (!state.sent.again) {
    buffers_.sent.Receive(slots_, &state.sent);
    ReceiveTags(&state);
  }
  Dispatched in = buffers_.sent.Locate(slots_, &state.sent);
  in.layout = DispatchLayout::kNormal;
  in.topk_ids = state.tags.data() + 1;
  in.topk_stride = tag_size_;
  in.k = k_;
  return in;
}

// Copies the tags to memory of the batch, because the slot may be reused before the batch ends. A
// lost rank cannot overwrite this copy.
void DeepEpNormal::ReceiveTags(State* state) const {
  const std::vector<int32_t>& begin = state->sent.begin;
  const int64_t capacity = std::min(buffers_.sent.capacity(),
                                    buffers_.returned.capacity() - state->returned.first_token);
  state->tags.resize(begin.back() * tag_size_);
  for (int source = 0; source < slots_.ranks(); ++source) {
    const int64_t rows = begin[source + 1] - begin[source];
    if (rows == 0) continue;
    int32_t* tags = state->tags.data() + begin[source] * tag_size_;
    int32_t* tokens = state->sent.tokens.data() + begin[source];
    if (source == slots_.rank()) {
      WriteTags(state->sent, source, tags);
    } else {
      std::memcpy(tags, slots_.Local(state->sent.use, TagOffset(source)),
                  rows * tag_size_ * sizeof(int32_t));
    }
    for (int64_t n = 0; n < rows; ++n) {
      tokens[n] = tags[n * tag_size_];
      CHECK(tokens[n] >= 0 && tokens[n] < capacity);
    }
  }
}

std::span<std::byte* const> DeepEpNormal::OutputDestinations(const ExpertRows& experts,
                                                             DispatchHandle* handle) {
  auto& state = handle->Get<State>();
  std::vector<CombinedRows::Target>& targets = state.returned.targets;
  targets.assign(experts.num_rows, {});
  for (int32_t n = 0; n < state.sent.begin.back(); ++n)
    for (int32_t j = 0; j < k_; ++j)
      if (const int32_t r = experts.position[int64_t{n} * k_ + j]; r >= 0) targets[r] = {n, j};
  return buffers_.returned.Places(slots_, state.sent, &state.returned);
}

void DeepEpNormal::PrepareCombine(const ExpertRows& experts, DispatchHandle* handle) {
  auto& state = handle->Get<State>();
  if (!state.returned.left) OutputDestinations(experts, handle);
  buffers_.returned.Prepare(slots_, buffers_.sent, state.sent, experts, {0, experts.num_rows},
                            &state.returned, pool_);
}

void DeepEpNormal::BeginCombine(const ExpertRows& experts, DispatchHandle* handle) {
  auto& state = handle->Get<State>();
  if (!state.returned.prepared) PrepareCombine(experts, handle);
  for (int part = 0; part < combine_parts(); ++part)
    slots_.RaiseAll(state.sent.use, kOutputs + part);
}

void DeepEpNormal::BeginCombinePart(const ExpertRows& experts, const OutputPart& part,
                                    DispatchHandle* handle) {
  auto& state = handle->Get<State>();
  if (!state.returned.left) OutputDestinations(experts, handle);
  buffers_.returned.Prepare(slots_, buffers_.sent, state.sent, experts, part.rows, &state.returned,
                            pool_);
  slots_.RaiseAll(state.sent.use, kOutputs + part.index);
}

void DeepEpNormal::EndCombine(DispatchHandle* handle, float* y) {
  auto& state = handle->Get<State>();
  CHECK(handle->round.last);
  buffers_.returned.AwaitAndSum(slots_, kOutputs, kCombine, state.sent, *handle->topk, experts_,
                                &state.returned, pool_, y);
  slots_.Release(&state.sent.use);
}

const std::byte* DeepEpNormal::EndCombineBySlot(DispatchHandle* handle) {
  auto& state = handle->Get<State>();
  CHECK(handle->round.last && handle->round.first_token == 0);
  buffers_.returned.AwaitAll(slots_, state.sent.use, kOutputs, kCombine);
  return buffers_.returned.OutputsBySlot(slots_, state.sent, &state.returned);
}

void DeepEpNormal::ReleaseOutputs(DispatchHandle* handle) {
  slots_.Release(&handle->Get<State>().sent.use);
}

}  // namespace switchyard
