#include "moe/dispatchers/exchange_slots.h"

#include <utility>

#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

// A flag on a cache line of its own, after the payload.
size_t SlotBytes(int ep, int num_stages, size_t payload_bytes) {
  BufferPlan plan;
  plan.Add(payload_bytes);
  plan.Add(size_t{BufferPlan::kLine} * num_stages * ep);
  return plan.bytes();
}

}  // namespace

size_t ExchangeSlots::Bytes(int ep, int num_stages, size_t payload_bytes) {
  return kSlots * SlotBytes(ep, num_stages, payload_bytes);
}

ExchangeSlots::ExchangeSlots(RankComm& comm, std::string name, int num_stages, size_t payload_bytes)
    : memory_(*comm.memory),
      name_(std::move(name)),
      peers_(comm.mesh.EpGroup()),
      rank_(comm.mesh.ep_rank()),
      payload_bytes_(payload_bytes),
      slot_bytes_(SlotBytes(comm.mesh.ep(), num_stages, payload_bytes)),
      base_(memory_.Allocate(Bytes(comm.mesh.ep(), num_stages, payload_bytes))) {
  CHECK_EQ(payload_bytes % BufferPlan::kLine, 0u);
}

void ExchangeSlots::Take(DispatchHandle* handle) {
  CHECK_EQ(handle->slot, -1);
  for (int slot = 0; slot < kSlots; ++slot) {
    if (taken_[slot]) continue;
    taken_[slot] = true;
    handle->slot = slot;
    handle->round = ++rounds_[slot];
    return;
  }
  throw Resource("{}: {} batches are in flight, as many as it has buffers; end one first", name_,
                 kSlots);
}

void ExchangeSlots::Release(DispatchHandle* handle) {
  CHECK(handle->slot >= 0 && taken_[handle->slot]);
  taken_[handle->slot] = false;
  handle->slot = -1;
}

std::byte* ExchangeSlots::At(const DispatchHandle& handle, int peer, size_t offset) const {
  return memory_.At(peers_[peer], base_ + handle.slot * slot_bytes_ + offset);
}

size_t ExchangeSlots::FlagOffset(int slot, int stage, int source) const {
  const size_t flag = static_cast<size_t>(stage) * peers_.size() + source;
  return base_ + slot * slot_bytes_ + payload_bytes_ + BufferPlan::kLine * flag;
}

void ExchangeSlots::RaiseAll(const DispatchHandle& handle, int stage) {
  for (const int peer : peers_)
    memory_.Raise(peer, FlagOffset(handle.slot, stage, rank_), handle.round);
}

void ExchangeSlots::WaitAll(const DispatchHandle& handle, int stage, const char* what) {
  for (int source = 0; source < ranks(); ++source)
    memory_.Wait(FlagOffset(handle.slot, stage, source), handle.round, peers_[source], what);
}

}  // namespace switchyard
