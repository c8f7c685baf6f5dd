// The rounds in which the members of a group hand each other bytes. Internal to comm/device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/device/symmetric_memory.h"

namespace switchyard {

// Every member runs the same sequence of rounds. In a round a member writes into a slot of its own
// in the staging of any peers, posts to each peer, and reads the slots of those that it wants to
// hear from:
//
//   Begin(stage);
//   for each peer: { fill Outbox(peer); Post(peer, bytes); }
//   use Inbox(r) of some peers r
//
// Slots are doubled by the parity of the round, and no barrier is needed for them to be reused:
// Outbox(p) of round k waits until p has posted round k - 1. A member posts round k - 1 only after
// it has done with every inbox of round k - 2, the last round that had this slot. Where everybody
// listened to everybody in round k - 1, that wait is over before it begins.
//
// Owned by a Communicator; the rank's thread only.
class StagedRounds {
 public:
  // Takes `staging_bytes` and a line for each member's flag from every rank's arena. `group` lists
  // world ranks.
  StagedRounds(SymmetricMemory& memory, std::vector<int> group, size_t staging_bytes);
  static size_t BytesPerRank(int group_size, size_t staging_bytes);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(group_.size()); }
  size_t slot_bytes() const { return slot_bytes_; }  // the most that one round carries to one peer
  // The k-th of the other members, k from 0, each member starting with another one so that they do
  // not all write to the same peer at once.
  int Peer(int k) const { return (rank_ + 1 + k) % size(); }
  int num_peers() const { return size() - 1; }

  // `stage` is for the message of a timeout and has to live until the next Begin.
  void Begin(const char* stage) {
    ++round_;
    stage_ = stage;
  }
  std::byte* Outbox(int peer);        // in the peer's arena, 64-byte aligned
  void Post(int peer, size_t bytes);  // of the outbox, from its start, that were filled
  void PostToAll();                   // of a round in which this member has nothing to say
  // What the peer wrote for this round. `idle`: waits for it without a deadline.
  const std::byte* Inbox(int peer, bool idle = false);

  // Skips rounds on every member: for a test of the counter's wrap. Fewer than 2^31 at a time, and
  // with a round in which everybody listens between two skips.
  void Skip(uint32_t rounds);

 private:
  size_t SlotOffset(int writer) const {
    return staging_ + ((round_ % 2) * group_.size() + static_cast<size_t>(writer)) * slot_bytes_;
  }
  size_t FlagOffset(int raiser) const { return flags_ + static_cast<size_t>(raiser) * 64; }

  SymmetricMemory& memory_;
  std::vector<int> group_;
  int rank_;
  size_t slot_bytes_;
  size_t staging_;  // [2, size, slot_bytes]: written by the peer of that place
  size_t flags_;    // one cache line for each peer: the last round that it posted
  uint32_t round_ = 0;
  const char* stage_ = "";
};

}  // namespace switchyard
