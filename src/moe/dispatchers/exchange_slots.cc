#include "moe/dispatchers/exchange_slots.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

// Each flag has its own cache line, after the payload.
size_t FlagBytes(int ep, int num_stages) { return size_t{BufferPlan::kLine} * num_stages * ep; }

}  // namespace

size_t BufferPlan::OffsetOf(std::string_view name) const {
  size_t offset = 0;
  for (const Buffer& buffer : buffers_) {
    if (buffer.name == name) return offset;
    offset += buffer.bytes;
  }
  CHECK(false);
  return 0;
}

size_t ExchangeSlots::Bytes(int ep, int num_stages, size_t payload_bytes, int slots) {
  return static_cast<size_t>(slots) * (payload_bytes + FlagBytes(ep, num_stages));
}

ExchangeMemory ExchangeSlots::Memory(const std::string& name, int ep, int num_stages,
                                     const BufferPlan& payload) {
  ExchangeMemory::Part part{.name = name, .slots = kSlots, .buffers = {}};
  for (const BufferPlan::Buffer& buffer : payload.buffers())
    part.buffers.push_back({std::string(buffer.name), buffer.bytes});
  part.buffers.push_back({"flags", FlagBytes(ep, num_stages)});
  return {{part}};
}

ExchangeSlots::ExchangeSlots(SymmetricMemory& memory, std::vector<int> group, std::string name,
                             int num_stages, size_t payload_bytes, const Options& options)
    : memory_(memory),
      name_(std::move(name)),
      peers_(std::move(group)),
      rank_(static_cast<int>(std::ranges::find(peers_, memory.rank()) - peers_.begin())),
      payload_bytes_(payload_bytes),
      slot_bytes_(payload_bytes + FlagBytes(ranks(), num_stages)),
      base_(memory_.Allocate(Bytes(ranks(), num_stages, payload_bytes, options.slots))),
      taken_(options.slots),
      rounds_(options.slots),
      all_mapped_(std::ranges::all_of(peers_, [&](int peer) { return memory_.Mapped(peer); })),
      pairwise_(options.pairwise),
      elastic_(options.elastic),
      device_ranks_(options.device_ranks),
      commits_(static_cast<size_t>(options.slots) * num_stages) {
  CHECK_LT(rank_, ranks());
  CHECK_GE(options.slots, 1);
  CHECK(!pairwise_ || elastic_ == nullptr);
  CHECK(device_ranks_ == 0 || (!pairwise_ && elastic_ == nullptr && all_mapped_));
  CHECK_EQ(payload_bytes % BufferPlan::kLine, 0u);
}

ExchangeSlots::ExchangeSlots(RankComm& comm, std::string name, int num_stages, size_t payload_bytes,
                             MaskedRanks* elastic)
    : ExchangeSlots(*comm.memory, comm.mesh.EpGroup(), std::move(name), num_stages, payload_bytes,
                    {.elastic = elastic}) {}

void ExchangeSlots::Take(SlotUse* use) {
  CHECK_EQ(use->slot, -1);
  const auto slots = static_cast<int>(taken_.size());
  for (int slot = 0; slot < slots; ++slot) {
    if (taken_[slot]) continue;
    taken_[slot] = true;
    use->slot = slot;
    use->round = ++rounds_[slot];
    return;
  }
  throw Resource("{}: {} batches are in flight, all buffers are in use; end one first", name_,
                 slots);
}

void ExchangeSlots::Release(SlotUse* use) {
  CHECK(use->slot >= 0 && taken_[use->slot]);
  taken_[use->slot] = false;
  use->slot = -1;
}

void ExchangeSlots::Advance(SlotUse* use) {
  CHECK(use->slot >= 0 && taken_[use->slot]);
  use->round = ++rounds_[use->slot];
}

std::byte* ExchangeSlots::At(const SlotUse& use, int peer, size_t offset) const {
  return memory_.At(peers_[peer], PayloadOffset(use, offset));
}

void ExchangeSlots::Wrote(const SlotUse& use, int peer, size_t offset, size_t bytes) {
  memory_.Wrote(peers_[peer], PayloadOffset(use, offset), bytes);
}

void ExchangeSlots::Fetch(const SlotUse& use, int peer, size_t offset, size_t bytes,
                          const char* what) {
  memory_.Fetch(peers_[peer], PayloadOffset(use, offset), bytes, what);
}

size_t ExchangeSlots::FlagOffset(int slot, int stage, int source) const {
  const size_t flag = static_cast<size_t>(stage) * peers_.size() + source;
  return base_ + slot * slot_bytes_ + payload_bytes_ + BufferPlan::kLine * flag;
}

void ExchangeSlots::RaisePairwise(const SlotUse& use, int stage) {
  const int me = rank_, all = ranks();
  memory_.Raise(peers_[me], FlagOffset(use.slot, stage, me), use.round);
  for (int step = 1; step < all; ++step) {
    memory_.Raise(peers_[(me + step) % all], FlagOffset(use.slot, stage, me), use.round);
    const int source = (me - step + all) % all;
    memory_.Wait(FlagOffset(use.slot, stage, source), use.round, peers_[source], name_.c_str());
  }
}

void ExchangeSlots::RaiseAll(const SlotUse& use, int stage) {
  if (pairwise_) return RaisePairwise(use, stage);
  if (elastic_) commits_[stage * taken_.size() + use.slot] = elastic_->Commit();
  for (const int peer : peers_) memory_.Raise(peer, FlagOffset(use.slot, stage, rank_), use.round);
}

void ExchangeSlots::WaitAll(const SlotUse& use, int stage, const char* what) {
  if (elastic_) return WaitForActive(use, stage, what);
  for (int source = 0; source < ranks(); ++source) WaitFor(use, stage, source, what);
}

void ExchangeSlots::WaitFor(const SlotUse& use, int stage, int source, const char* what) {
  const size_t flag = FlagOffset(use.slot, stage, source);
  if (source < device_ranks_) return memory_.Poll(flag, use.round, peers_[source], what);
  memory_.Wait(flag, use.round, peers_[source], what);
}

void ExchangeSlots::WaitForActive(const SlotUse& use, int stage, const char* what) {
  const uint64_t commit = commits_[stage * taken_.size() + use.slot];
  const Deadline until = elastic_->WaitDeadline();
  for (int source = 0; source < ranks(); ++source)
    if (Active(source))
      elastic_->Wait(source, commit, FlagOffset(use.slot, stage, source), use.round, until, what);
}

bool ExchangeSlots::AllReached(const SlotUse& use, int stage) const {
  if (memory_.aborted()) return true;
  for (int source = 0; source < ranks(); ++source)
    if (Active(source) && !memory_.Reached(FlagOffset(use.slot, stage, source), use.round))
      return false;
  return true;
}

}  // namespace switchyard
