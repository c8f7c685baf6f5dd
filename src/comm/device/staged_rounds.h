// Rounds of message exchange between the members of a group. Internal to comm/device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/device/symmetric_memory.h"

namespace switchyard {

// Every member runs the same sequence of rounds. In a round a member writes messages to its own
// slots in the staging buffers of peers, and posts to each peer. It then reads the messages that it
// needs:
//
//   Begin(stage);
//   for each peer: { fill Outbox(peer); Post(peer, bytes); }
//   use Inbox(r) of some peers r
//
// Slots are double-buffered by the parity of the round. Their reuse needs no barrier. Outbox(p) of
// round k waits until p has posted round k - 1. Before that post, p has finished with every inbox
// of round k - 2, the last round that used this slot. If every member read from every peer in round
// k - 1, that wait returns immediately.
//
// Owned by a Communicator; used by the rank's thread only.
class StagedRounds {
 public:
  // Allocates `staging_bytes` and a cache line for each member's flag in every rank's arena.
  // `group` lists world ranks.
  StagedRounds(SymmetricMemory& memory, std::vector<int> group, size_t staging_bytes);
  static size_t BytesPerRank(int group_size, size_t staging_bytes);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(group_.size()); }
  size_t slot_bytes() const { return slot_bytes_; }  // maximum bytes of one round to one peer
  // The k-th of the other members, k from 0. Each member starts with a different peer, so that they
  // do not all write to the same peer at the same time.
  int Peer(int k) const { return (rank_ + 1 + k) % size(); }
  int num_peers() const { return size() - 1; }

  // `stage` is named in timeout messages and has to live until the next Begin.
  void Begin(const char* stage) {
    ++round_;
    stage_ = stage;
  }
  std::byte* Outbox(int peer);        // in the peer's arena, 64-byte aligned
  void Post(int peer, size_t bytes);  // `bytes`: filled bytes at the start of the outbox
  void PostToAll();                   // for a round in which this member sends no data
  // The peer's message of this round. `idle`: waits for it without a deadline.
  const std::byte* Inbox(int peer, bool idle = false);

  // Skips rounds on every member, to test wrap-around of the counter. A call skips fewer than 2^31
  // rounds. Between two calls, all members must read from all peers in some round.
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
  size_t staging_;  // [2, size, slot_bytes]: slot i is written by member i
  size_t flags_;    // one cache line for each peer: the last round that it posted
  uint32_t round_ = 0;
  const char* stage_ = "";
};

}  // namespace switchyard
