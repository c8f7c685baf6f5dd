#include "moe/cuda/dispatchers/exchange.h"

#include <vector>

#include "core/cuda/runtime.h"
#include "moe/cuda/dispatchers/exchange_launch.h"
#include "moe/cuda/dispatchers/exchange_layout.h"

namespace switchyard::cuda {
namespace {

// Grid sizes of the kernels that copy rows.
struct Grids {
  int dispatch, combine;
};
Grids GridsFor(const ExchangeConfig& c) {
  if (c.blocks > 0) return {c.blocks, c.blocks};
  const int processors = MultiprocessorCount();
  return {c.low_latency ? processors / 2 : processors, processors};
}

PeerPointers OfGroup(const ExchangeConfig& config, PeerMemory& memory) {
  const size_t offset = memory.Allocate(Exchange::PeerBytes(config));
  PeerPointers group;
  for (int r = 0; r < config.ranks; ++r)
    group.at[r] = memory.At(config.world_ranks ? config.world_ranks[r] : r, offset);
  return group;
}

}  // namespace

struct Exchange::Impl {
  // Device state of a slot, and the kernel arguments of its last batch.
  struct Slot {
    ExchangeSlotMemory memory;
    ExchangeBatch batch = {};
    bool overlaps = false;  // Tokens::overlaps
    int parts = 0;          // number of parts of the outputs that were sent so far
  };

  ExchangeLayout layout;
  Grids grids;
  DeviceMemory experts;
  std::vector<Slot> slots;

  Impl(const ExchangeConfig& c, const ExpertMap& map, const ExchangePeers& peers)
      : layout(LayoutOf(c)),
        grids(GridsFor(c)),
        experts(PlacesOf(map, c.ranks)),
        slots(c.in_flight) {
    Check(LoadDispatchKernels(), "kernels of the dispatch");
    Check(LoadReturnKernels(), "kernels of the combine");
    Check(LoadSumKernels(), "kernels of the combine");
    for (int s = 0; s < c.in_flight; ++s) {
      Slot& slot = slots[s];
      slot.memory = SlotMemoryOf(c);
      ExchangeBatch& b = slot.batch;
      b = BatchOf(c, slot.memory, experts, map.size());
      for (int r = 0; r < c.ranks; ++r) b.slot[r] = peers.memory.at[r] + s * layout.bytes;
      b.layout = layout;
      b.limit = peers.limit;
      b.early = IsHopper();
    }
  }

  Slot& At(int slot) { return SlotAt(slots, slot); }
  // Returns the arguments of a kernel that must wait for an event of another stream if the batch
  // overlaps. Such a kernel must not start early: programmatic dependent launch only orders it
  // after the previous kernel of its own stream.
  ExchangeBatch AfterEvent(int slot) {
    ExchangeBatch batch = At(slot).batch;
    batch.early = batch.early && !At(slot).overlaps;
    return batch;
  }
};

size_t Exchange::PeerBytes(const ExchangeConfig& config) {
  return static_cast<size_t>(LayoutOf(config).bytes) * config.in_flight;
}

Exchange::Exchange(const ExchangeConfig& config, const ExpertMap& experts,
                   const ExchangePeers& peers)
    : impl_(std::make_unique<Impl>(config, experts, peers)) {}

Exchange::Exchange(const ExchangeConfig& config, const ExpertMap& experts, PeerMemory& memory)
    : Exchange(config, experts, {OfGroup(config, memory), memory.wait_limit()}) {}

Exchange::~Exchange() = default;

void Exchange::BeginDispatch(int slot, const Tokens& tokens, cudaStream_t stream) {
  Impl::Slot& at = impl_->At(slot);
  SetTokens(at.batch, tokens);
  at.overlaps = tokens.overlaps;
  at.parts = 0;
  Check(StartDispatch(at.batch, impl_->grids.dispatch, stream), "dispatch");
}

DispatchedRows Exchange::EndDispatch(int slot, cudaStream_t stream) {
  const ExchangeBatch batch = impl_->AfterEvent(slot);
  Check(StartDispatchWait(batch, stream), "end of the dispatch");
  const std::byte* own = batch.slot[batch.rank];
  const ExchangeLayout& at = batch.layout;
  return {.rows = own + at.rows,
          .row_stride = at.row_stride,
          .scale_offset = at.scale_offset,
          .ids = reinterpret_cast<const int32_t*>(own + at.ids),
          .weights = batch.sum_by_rank ? reinterpret_cast<const float*>(own + at.weights) : nullptr,
          .counts = batch.state->received};
}

void Exchange::BeginCombine(int slot, const void* outputs, const int32_t* position,
                            cudaStream_t stream) {
  BeginCombinePart(slot, outputs, position, {}, stream);
}

void Exchange::BeginCombinePart(int slot, const void* outputs, const int32_t* position,
                                const OutputRange& range, cudaStream_t stream) {
  Impl::Slot& at = impl_->At(slot);
  const ReturnPart part = {.range = range, .index = at.parts++};
  Check(StartCombine(at.batch, outputs, position, part, impl_->grids.combine, stream), "combine");
}

void Exchange::EndCombine(int slot, float* y, cudaStream_t stream) {
  const ExchangeBatch batch = impl_->AfterEvent(slot);
  Check(StartCombineSum(batch, y, impl_->grids.combine, stream), "end of the combine");
}

void Exchange::SetActive(const uint8_t* active) {
  for (auto& slot : impl_->slots) slot.batch.active = active;
}

}  // namespace switchyard::cuda
