#include "moe/dispatchers/fused_tiles.h"

#include <algorithm>
#include <functional>

#include "core/check.h"
#include "core/error.h"
#include "moe/dispatchers/combined_rows.h"
#include "moe/dispatchers/rounds.h"
#include "moe/rows.h"

namespace switchyard {
namespace {

constexpr char kDispatch[] = "fused dispatch rows";
constexpr char kCombine[] = "fused combine rows";

}  // namespace

FusedTiles::Buffers::Buffers(const MoeOptions& options, const ExchangeShape& shape)
    : published(shape, TokensPerRound(options, shape), &plan),
      outputs(plan.Add(
          "outputs", shape.hidden * SizeOf(shape.output_dtype) * published.capacity() * shape.k)) {}

ExchangeMemory FusedTiles::Memory(const MoeOptions& options, const ExchangeShape& shape) {
  return ExchangeSlots::Memory("fused", shape.ep, kNumStages, Buffers(options, shape).plan);
}

FusedTiles::FusedTiles(const DispatcherContext& context)
    : pool_(context.pool),
      hidden_(context.shape.hidden),
      k_(context.shape.k),
      format_(context.shape.row_format),
      output_dtype_(context.shape.output_dtype),
      output_bytes_(hidden_ * SizeOf(output_dtype_)),
      experts_(context.experts),
      buffers_(context.options, context.shape),
      slots_(context.comm, "fused", kNumStages, buffers_.plan.bytes()) {}

void FusedTiles::Begin(const float* x, const TopK& topk, bool, DispatchHandle* handle) {
  if (topk.tokens > buffers_.published.capacity())
    throw Resource("fused: {} tokens on one rank exceed the capacity of {}", topk.tokens,
                   buffers_.published.capacity());
  CHECK_EQ(topk.k, k_);
  auto& state = handle->Get<State>();
  slots_.Take(&state.use);
  handle->layout = DispatchLayout::kNormal;
  handle->topk = &topk;
  state.x = x;
  buffers_.published.PublishRouting(slots_, state.use, topk);
  buffers_.published.PublishRows(slots_, state.use, x, topk, experts_, pool_);
  slots_.RaiseAll(state.use, kRows);
}

void FusedTiles::End(const ExpertBlock& block, DispatchHandle* handle, float* y) {
  auto& state = handle->Get<State>();
  slots_.WaitAll(state.use, kRows, kDispatch);
  ListWork(static_cast<int>(block.experts.size()), &state);
  FetchRows(state);
  const auto count = static_cast<int64_t>(state.work.size());
  for (int64_t begin = 0; begin < count; begin += kTileRows)
    RunTile(block, state, begin, std::min(count, begin + kTileRows));
  slots_.RaiseAll(state.use, kOutputs);
  slots_.WaitAll(state.use, kOutputs, kCombine);
  const TopK& topk = *handle->topk;
  SumReturnedRows(topk, {topk.tokens}, experts_, slots_, output_dtype_, hidden_,
                  slots_.Local(state.use, buffers_.outputs), pool_, y);
  slots_.Release(&state.use);
}

// Sorts the (token, slot) pairs of all ranks by this rank's experts, with a stable counting sort.
void FusedTiles::ListWork(int local_experts, State* state) {
  const int me = slots_.rank();
  state->routing.clear();
  for (int source = 0; source < slots_.ranks(); ++source)
    state->routing.push_back(buffers_.published.ReadRouting(slots_, state->use, source, kDispatch));
  const auto for_each = [&](const auto& visit) {
    for (int32_t source = 0; source < slots_.ranks(); ++source) {
      const PublishedRows::Routing& routing = state->routing[source];
      for (int32_t t = 0; t < routing.tokens; ++t)
        for (int32_t j = 0; j < k_; ++j)
          if (const int32_t e = experts_.LocalIdOn(me, routing.ids[int64_t{t} * k_ + j]); e >= 0)
            visit(e, Work{source, t, j});
    }
  };

  // While work items are placed, offsets[e] advances from the begin to the end of expert e.
  // Afterwards the array is shifted by one, which restores the begins.
  std::vector<int32_t>& offsets = state->offsets;
  offsets.assign(local_experts + 1, 0);
  for_each([&](int32_t e, const Work&) { ++offsets[e + 1]; });
  for (int e = 0; e < local_experts; ++e) offsets[e + 1] += offsets[e];
  state->work.resize(offsets.back());
  for_each([&](int32_t e, const Work& work) { state->work[offsets[e]++] = work; });
  for (int e = local_experts; e > 0; --e) offsets[e] = offsets[e - 1];
  offsets[0] = 0;
}

// Fetches all needed rows from ranks of other hosts at once, into the local copy of the source's
// arena.
void FusedTiles::FetchRows(const State& state) {
  std::vector<int32_t> tokens;
  for (int source = 0; source < slots_.ranks(); ++source) {
    if (slots_.Mapped(source)) continue;
    tokens.clear();
    for (const Work& work : state.work)
      if (work.source == source) tokens.push_back(work.token);
    std::ranges::sort(tokens);
    buffers_.published.FetchRows(slots_, state.use, source, tokens, kDispatch);
  }
}

void FusedTiles::RunTile(const ExpertBlock& block, const State& state, int64_t begin, int64_t end) {
  const std::span tile(state.work.data() + begin, end - begin);
  const auto rows = static_cast<int64_t>(tile.size());
  most_tile_rows_ = std::max(most_tile_rows_, rows);
  Gather(state, tile);
  auto& offsets = tile_.storage.offsets;
  offsets.clear();
  for (const int32_t offset : state.offsets)
    offsets.push_back(static_cast<int32_t>(std::clamp<int64_t>(offset - begin, 0, rows)));
  tile_.offsets = offsets;
  tile_.num_rows = rows;
  runner_.Run(block, tile_, hidden_, pool_, tile_out_.Get(rows * hidden_));
  Return(state, tile);
}

void FusedTiles::Gather(const State& state, std::span<const Work> tile) {
  const PublishedRows& published = buffers_.published;
  const auto rows = static_cast<int64_t>(tile.size());
  float* x = tile_.storage.x.Get(rows * hidden_);
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Work& work = tile[i];
      if (work.source == slots_.rank()) {
        RoundRow(format_, state.x + work.token * hidden_, hidden_, x + i * hidden_);
      } else {
        LoadRow(format_, published.Row(slots_, state.use, work.source, work.token), hidden_,
                x + i * hidden_);
      }
    }
  };
  pool_.RunRanges(rows, kRowGrain, std::cref(body));
  tile_.x = x;
  tile_.ldx = hidden_;
}

void FusedTiles::Return(const State& state, std::span<const Work> tile) {
  const auto offset_of = [&](const Work& work) {
    return buffers_.outputs + OutputPlace(work.token, work.slot, k_) * output_bytes_;
  };
  const float* out = tile_out_.data();
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      StoreRow(output_dtype_, out + i * hidden_, hidden_,
               slots_.At(state.use, tile[i].source, offset_of(tile[i])));
  };
  pool_.RunRanges(static_cast<int64_t>(tile.size()), kRowGrain, std::cref(body));
  for (const Work& work : tile)
    slots_.Wrote(state.use, work.source, offset_of(work), output_bytes_);
}

FusedBackend FusedTilesBackend() {
  return BackendOf<FusedExperts, FusedTiles>(
      "dispatch, experts and combine in one operator, a tile of rows at a time");
}

}  // namespace switchyard
