#include "comm/device/staged_rounds.h"

#include <algorithm>
#include <functional>

#include "core/check.h"

namespace switchyard {
namespace {

constexpr size_t kLineBytes = 64;

int IndexOf(const std::vector<int>& group, int rank) {
  CHECK(std::ranges::adjacent_find(group, std::greater_equal<int>()) == group.end());
  const auto place = std::ranges::find(group, rank);
  CHECK(place != group.end());
  return static_cast<int>(place - group.begin());
}

size_t SlotBytes(size_t group_size, size_t staging_bytes) {
  return staging_bytes / (2 * group_size) / kLineBytes * kLineBytes;
}

}  // namespace

StagedRounds::StagedRounds(SymmetricMemory& memory, std::vector<int> group, size_t staging_bytes)
    : memory_(memory),
      group_(std::move(group)),
      rank_(IndexOf(group_, memory.rank())),
      slot_bytes_(SlotBytes(group_.size(), staging_bytes)),
      staging_(memory.Allocate(2 * group_.size() * slot_bytes_, kLineBytes)),
      flags_(memory.Allocate(group_.size() * kLineBytes, kLineBytes)) {
  CHECK_GE(slot_bytes_, kLineBytes);
}

size_t StagedRounds::BytesPerRank(int group_size, size_t staging_bytes) {
  const auto members = static_cast<size_t>(group_size);
  return 2 * members * SlotBytes(members, staging_bytes) + members * kLineBytes;
}

std::byte* StagedRounds::Outbox(int peer) {
  memory_.Wait(FlagOffset(peer), round_ - 1, group_[peer], stage_);
  return memory_.At(group_[peer], SlotOffset(rank_));
}

void StagedRounds::Post(int peer, size_t bytes) {
  CHECK_LE(bytes, slot_bytes_);
  memory_.Wrote(group_[peer], SlotOffset(rank_), bytes);
  memory_.Raise(group_[peer], FlagOffset(rank_), round_);
}

void StagedRounds::PostToAll() {
  for (int k = 0; k < num_peers(); ++k) Post(Peer(k), 0);
}

const std::byte* StagedRounds::Inbox(int peer, bool idle) {
  memory_.Wait(FlagOffset(peer), round_, group_[peer], stage_, idle);
  return memory_.Local(SlotOffset(peer));
}

void StagedRounds::Skip(uint32_t rounds) {
  round_ += rounds;
  PostToAll();
}

}  // namespace switchyard
