// Memory that every rank maps for every rank: the one primitive under collectives and dispatchers.
//
// Each rank owns an arena of equal size. A rank may write rows into a peer's arena and then raise a
// flag there; the peer waits for the flag in its own arena and reads. On CPUs of one host an arena
// is shared memory; the same algorithms run over NVLink, where a peer's arena is mapped into the
// device's address space.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace switchyard {

using Deadline = std::chrono::steady_clock::time_point;

class RemoteRanks;

// The memory of a world: created once by whoever starts the ranks (a test with rank threads, or the
// parent of rank processes, which inherit the file descriptor). Anonymous (memfd): nothing is left
// behind, however a process ends. Where the world spans hosts, each has an arena of its own for all
// ranks, of which it uses the part of its own ranks.
class SharedArena {
 public:
  // Reserves world × bytes_per_rank; pages are taken from the system when first touched.
  static std::shared_ptr<SharedArena> Create(int world, size_t bytes_per_rank);
  // In a rank process. Takes the descriptor over; Error kInvalid where it is no arena.
  static std::shared_ptr<SharedArena> FromFd(int fd);
  ~SharedArena();

  int fd() const;  // to be inherited across exec
  int world() const;
  size_t bytes_per_rank() const;

  // Ranks that have attached; the parent waits for it to reach world().
  int joined() const;
  bool Joined(int rank) const;
  // Makes every present and later wait of every rank throw Error kPeer with `reason`. First call
  // wins. With remote ranks, theirs too, and only the rank's thread may call it.
  void Abort(std::string_view reason);
  // The same for the ranks of this host only, from any thread; they pass it on.
  void AbortHere(std::string_view reason);

  // In a rank's process, before its SymmetricMemory: the way to the ranks of other hosts.
  void Attach(std::unique_ptr<RemoteRanks> remote);

 private:
  friend class SymmetricMemory;
  friend class ArenaDoor;
  struct Impl;
  std::unique_ptr<Impl> impl_;
  explicit SharedArena(std::unique_ptr<Impl> impl);
};

// One rank's handle on the world's arenas. Owned by the rank, used by the rank's thread only, as
// long as the rank lives.
//
// Allocation is symmetric: all ranks make the same calls in the same order, so an offset means the
// same buffer on each. There is no free; everything is sized at start.
class SymmetricMemory {
 public:
  struct Options {
    // Longest wait for a peer in one stage before Error kTimeout says who waits for whom
    // (`--dist-timeout`).
    std::chrono::milliseconds timeout{300'000};
  };
  SymmetricMemory(std::shared_ptr<SharedArena> arena, int rank, Options options);
  ~SymmetricMemory();

  int rank() const;
  int world() const;

  // Offset of a new buffer in every rank's arena, zeroed at start. Error kResource names need and
  // capacity.
  size_t Allocate(size_t bytes, size_t alignment = 64);
  size_t bytes_used() const;

  std::byte* At(int rank, size_t offset);  // that rank's copy of the buffer
  std::byte* Local(size_t offset) { return At(rank(), offset); }

  // Ranks of other hosts: At(rank, …) is then this host's image of that rank's arena, and these two
  // carry bytes between the image and the arena. For ranks whose memory is mapped they do nothing
  // and cost nothing, so algorithms call them always.
  //
  // Says that [offset, offset + bytes) of `rank`'s copy was written here. The bytes, as they are at
  // the next Raise of that rank, are there before that flag is.
  void Wrote(int rank, size_t offset, size_t bytes);
  // Makes [offset, offset + bytes) of `rank`'s copy readable here, as it is there now. Waits with
  // the deadline of Wait; the peer's own thread takes no part. The caller has seen a flag that says
  // that the bytes are final.
  void Fetch(int rank, size_t offset, size_t bytes, const char* stage);
  bool Mapped(int rank) const;  // whether At(rank, …) is that rank's memory itself

  // Flags are 32-bit round numbers. Raise: all writes before it are seen by whoever sees the flag
  // (release), and a sleeping waiter wakes. Each flag has one raiser.
  void Raise(int rank, size_t flag_offset, uint32_t value);
  // Waits until the local flag has reached `value` (modulo 2^32, so rounds may wrap): spins
  // briefly, then sleeps on the word, so that more ranks than cores still work. `peer` and `stage`
  // are for the message of the timeout. `idle`: waits without a deadline (the leader may have
  // nothing to say for hours), yet not through an Abort.
  void Wait(size_t flag_offset, uint32_t value, int peer, const char* stage, bool idle = false);
  // The same with a deadline of its own, that of a rank which can do without the peer: false when
  // `timeout` has passed.
  bool WaitFor(size_t flag_offset, uint32_t value, std::chrono::milliseconds timeout);
  bool Reached(size_t flag_offset, uint32_t value);  // the same, without waiting
  bool aborted() const;                              // whether every wait throws from now on

  void Abort(std::string_view reason);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
