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

// The memory of a world: created once by whoever starts the ranks (a test with rank threads, or the
// parent of rank processes, which inherit the file descriptor). Anonymous (memfd): nothing is left
// behind, however a process ends.
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
  // wins.
  void Abort(std::string_view reason);

 private:
  friend class SymmetricMemory;
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

  // Flags are 32-bit round numbers. Raise: all writes before it are seen by whoever sees the flag
  // (release), and a sleeping waiter wakes. Each flag has one raiser.
  void Raise(int rank, size_t flag_offset, uint32_t value);
  // Waits until the local flag has reached `value` (modulo 2^32, so rounds may wrap): spins
  // briefly, then sleeps on the word, so that more ranks than cores still work. `peer` and `stage`
  // are for the message of the timeout. `idle`: waits without a deadline (the leader may have
  // nothing to say for hours), yet not through an Abort.
  void Wait(size_t flag_offset, uint32_t value, int peer, const char* stage, bool idle = false);
  bool Reached(size_t flag_offset, uint32_t value);  // the same, without waiting

  void Abort(std::string_view reason);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
