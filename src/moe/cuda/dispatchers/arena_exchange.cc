#include "moe/cuda/dispatchers/arena_exchange.h"

#include <vector>

#include "core/check.h"
#include "core/cuda/runtime.h"
#include "moe/cuda/dispatchers/arena_exchange_launch.h"
#include "moe/cuda/dispatchers/exchange_layout.h"
#include "moe/dispatchers/exchange_slots.h"

namespace switchyard::cuda {
namespace {

ArenaPlaces PlacesIn(const DeepEpArena& arena) {
  const auto offset = [](size_t bytes) { return static_cast<int64_t>(bytes); };
  return {.counts = offset(arena.counts),
          .rows = offset(arena.rows),
          .tags = offset(arena.tags),
          .outputs = offset(arena.outputs),
          .flags = offset(arena.flags),
          .flag_stride = offset(arena.flag_stride),
          .capacity = arena.capacity,
          .row_bytes = arena.row_bytes,
          .rows_flag = arena.rows_flag,
          .outputs_flag = arena.outputs_flag};
}

}  // namespace

struct ArenaExchange::Impl {
  struct Slot {
    ExchangeSlotMemory memory;
    DeviceMemory rows, ids;
    ArenaBatch batch = {};
  };

  int blocks;
  DeviceMemory experts;
  std::vector<Slot> slots;

  Impl(const ExchangeConfig& c, const DeepEpArena& arena, const ExpertMap& map, HostLink& link)
      : blocks(c.blocks > 0 ? c.blocks : MultiprocessorCount()),
        experts(PlacesOf(map, c.ranks)),
        slots(c.in_flight) {
    const ExchangeLayout layout = LayoutOf(c);  // validates the sizes
    CHECK(c.rank == 0 && c.ranks > 1 && !c.sum_by_rank);
    CHECK_LE(c.in_flight, ExchangeSlots::kSlots);
    CHECK_EQ(arena.capacity, c.max_tokens);
    CHECK_EQ(arena.row_bytes, c.dispatched.Bytes(c.hidden));
    CHECK_EQ(arena.row_bytes % 4, 0);
    Check(LoadArenaKernels(), "kernels of the exchange with CPUs");
    const PeerPointers arenas = link.Allocate(arena.bytes, c.in_flight * arena.slot_bytes);
    for (int s = 0; s < c.in_flight; ++s) {
      Slot& slot = slots[s];
      slot.memory = SlotMemoryOf(c);
      slot.rows = DeviceMemory(c.max_tokens * layout.row_stride);
      slot.ids = DeviceMemory(c.max_tokens * c.top_k * sizeof(int32_t));
      ArenaBatch& b = slot.batch;
      b.tokens = BatchOf(c, slot.memory, experts, map.size());
      b.tokens.layout = layout;
      b.tokens.limit = link.wait_limit();
      for (int r = 0; r < c.ranks; ++r)
        b.arena[r] = arenas.at[b.tokens.world_ranks[r]] + s * arena.slot_bytes;
      b.at = PlacesIn(arena);
      b.aborted = link.aborted();
      b.own_rows = slot.rows.data();
      b.own_ids = slot.ids.as<int32_t>();
      b.own_stride = layout.row_stride;
      b.combined_bytes = layout.combined_bytes;
    }
  }

  Slot& At(int slot) { return SlotAt(slots, slot); }
};

ArenaExchange::ArenaExchange(const ExchangeConfig& config, const DeepEpArena& arena,
                             const ExpertMap& experts, HostLink& link)
    : impl_(std::make_unique<Impl>(config, arena, experts, link)) {}

ArenaExchange::~ArenaExchange() = default;

void ArenaExchange::BeginDispatch(int slot, const Tokens& tokens, cudaStream_t stream) {
  CHECK(!tokens.overlaps);
  ArenaBatch& batch = impl_->At(slot).batch;
  SetTokens(batch.tokens, tokens);
  Check(StartArenaDispatch(batch, impl_->blocks, stream), "dispatch to experts on CPUs");
}

DispatchedRows ArenaExchange::EndDispatch(int slot, cudaStream_t /*stream*/) {
  const ArenaBatch& batch = impl_->At(slot).batch;
  return {.rows = batch.own_rows,
          .row_stride = batch.own_stride,
          .scale_offset = batch.tokens.layout.scale_offset,
          .ids = batch.own_ids,
          .counts = batch.tokens.state->received};
}

void ArenaExchange::BeginCombine(int slot, const void* outputs, const int32_t* position,
                                 cudaStream_t /*stream*/) {
  ArenaBatch& batch = impl_->At(slot).batch;
  batch.outputs = outputs;
  batch.position = position;
}

void ArenaExchange::EndCombine(int slot, float* y, cudaStream_t stream) {
  Check(StartArenaCombine(impl_->At(slot).batch, y, impl_->blocks, stream),
        "combine with experts on CPUs");
}

}  // namespace switchyard::cuda
