// Symmetric memory: each rank has memory that all ranks can access. Collectives and dispatchers are
// built on it.
//
// Each rank owns an arena of equal size. A rank may write rows into a peer's arena and then raise a
// flag there. The peer waits for the flag in its own arena and reads the rows. On CPUs of one host
// an arena is shared memory. On GPUs, the same algorithms run on memory that peers map over NVLink
// (cuda/peer_memory.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

using Deadline = std::chrono::steady_clock::time_point;

class RemoteRanks;

// The memory of a world. Created once by the process that starts the ranks: a test with rank
// threads, or the parent of rank processes, which inherit the file descriptor. Anonymous (memfd):
// nothing is left behind, however a process ends. If the world spans hosts, each host has an
// arena for all ranks, of which it uses the parts of its own ranks.
class SharedArena {
 public:
  // Reserves world × (bytes_per_rank + kept_per_rank); pages are committed on first touch.
  // `messages`: epochs may have messages.
  static std::shared_ptr<SharedArena> Create(int world, size_t bytes_per_rank,
                                             size_t kept_per_rank = 0, bool messages = false);
  // Maps the arena of an inherited descriptor in a rank process. Takes ownership of the descriptor.
  // Error kInvalid if it is not an arena.
  static std::shared_ptr<SharedArena> FromFd(int fd);
  ~SharedArena();

  int fd() const;  // for inheritance across exec
  int world() const;
  size_t bytes_per_rank() const;

  // The number of attached ranks.
  int joined() const;
  bool Joined(int rank) const;
  // Makes every current and later wait of every rank throw Error kPeer with `reason`. The first
  // call wins. If remote ranks are attached, aborts them too; then only the rank's thread may call
  // it.
  void Abort(std::string_view reason);
  // Aborts the ranks of this host only, from any thread; these ranks forward the abort to their
  // peers.
  void AbortHere(std::string_view reason);
  bool aborted() const;
  std::string AbortReason() const;  // empty before an abort

  // Epochs: after an abort, ranks may wait until the parent has started the missing ranks. All
  // ranks then begin again with new communicators. The parent calls EnableEpochs before it starts
  // ranks. It calls BeginEpoch when each rank either waits or has ended. BeginEpoch clears the
  // memory of all ranks and marks them as not joined. Waiting ranks receive `endpoint`. All ranks
  // can read `message`, opaque bytes, which apply to this epoch only. Error kInvalid if the message
  // has more than kMaxMessageBytes, or if the arena was created without messages.
  //
  // An epoch may run without the ranks `absent`, which load meanwhile. Then absent ranks take no
  // part, and SymmetricMemory numbers the other ranks from 0 without gaps.
  void EnableEpochs();
  bool has_epochs() const { return epoch() != 0; }
  uint32_t epoch() const;  // number of the present epoch; 0: epochs are not enabled
  void BeginEpoch(std::string_view endpoint, std::span<const int> absent = {},
                  std::string_view message = {});
  static constexpr size_t kMaxMessageBytes = size_t{1} << 20;
  std::string message() const;   // of the present epoch; empty in the first one
  std::string endpoint() const;  // of the present epoch; empty in the first one
  bool Waits(int rank) const;
  bool Active(int rank) const;           // whether the present epoch runs with the rank
  std::vector<int> ActiveRanks() const;  // ascending
  // In a rank that has no SymmetricMemory: waits for the epoch after `last`, without a deadline.
  // Returns the endpoint that was given to BeginEpoch.
  std::string WaitForEpoch(int rank, uint32_t last);
  // Counts a step of the load of `rank`, if no other rank waits for it in a collective. The process
  // that watches the rank reads the count, and so detects a load that hangs. Any thread of the rank
  // may call CountLoadStep.
  void CountLoadStep(int rank);
  uint64_t load_steps(int rank) const;

  // Spares: processes that have loaded what all ranks need, and wait until one of them takes the
  // place of a rank. The parent numbers them by slots 0 to kMaxSpares − 1. It calls ClearSpare
  // before it starts the process of a slot. GivePlace ends the wait of a spare that has loaded;
  // after that, the process is `rank`, which begins with the present epoch.
  static constexpr int kMaxSpares = 32;
  void ClearSpare(int slot);
  void GivePlace(int slot, int rank);
  bool SpareWaits(int slot) const;  // has loaded, and has got no place
  bool PlaceTaken(int slot) const;  // the process of the slot knows its rank
  // In a spare. AwaitPlace waits without a deadline, because a spare may never be needed, and
  // returns the rank. CountSpareStep counts a step of the load, as CountLoadStep does for a rank.
  int AwaitPlace(int slot);
  void CountSpareStep(int slot);
  uint64_t spare_steps(int slot) const;

  // The kept memory of a rank, used by this rank only. It outlives epochs and the rank's process: a
  // new process finds the bytes that the previous process wrote. Initially zero; empty if the arena
  // was created without kept memory. ClearKept zeroes the kept memory of all ranks; the parent
  // calls it before BeginEpoch.
  std::span<std::byte> Kept(int rank) const;
  void ClearKept();

  // Heartbeats of ranks: counters in shared memory, for a monitor in another thread or process. A
  // counter that does not change means that the rank is stopped or stuck. 0: the rank does not
  // serve. Rank 0's host receives the counters of all other hosts, and every host receives rank 0's
  // counter, about twice a second.
  uint64_t beats(int rank) const;
  // How long the rank may compute without a heartbeat (SymmetricMemory::SetHeartbeatTimeout).
  std::chrono::milliseconds HeartbeatTimeout(int rank) const;
  // The requests that the rank recorded last (SymmetricMemory::RecordRequests), for the process
  // that watches the rank. Nullopt if they are not known. Call it after the rank has ended.
  std::optional<std::vector<uint64_t>> RecordedRequests(int rank) const;
  // The parent process has a heartbeat too, so that ranks detect when it is stopped. 0: no monitor.
  void BeatAsParent();
  uint64_t parent_beats() const;

  // Attaches the ranks of other hosts. Called in a rank's process, before its SymmetricMemory is
  // made.
  void Attach(std::unique_ptr<RemoteRanks> remote);

 private:
  friend class SymmetricMemory;
  friend class RemoteArenaAccess;
  struct Impl;
  std::unique_ptr<Impl> impl_;
  explicit SharedArena(std::unique_ptr<Impl> impl);
};

// One rank's access to the arenas of all ranks. Owned by the rank, used by the rank's thread only,
// as long as the rank lives.
//
// Allocation is symmetric: all ranks make the same calls in the same order, so an offset denotes
// the same buffer on each. There is no free; all sizes are fixed at startup.
class SymmetricMemory {
 public:
  struct Options {
    // Longest wait for a peer in one stage (`--dist-timeout`). Error kTimeout then names both ranks
    // and the stage.
    std::chrono::milliseconds timeout{300'000};
  };
  // `rank`: in the arena; active in the present epoch.
  SymmetricMemory(std::shared_ptr<SharedArena> arena, int rank, Options options);
  ~SymmetricMemory();

  // This rank's number among the active ranks of the epoch, and the number of active ranks. All
  // ranks in the functions below are such numbers. They are those of the arena if all ranks are
  // active.
  int rank() const;
  int world() const;
  std::chrono::milliseconds timeout() const;  // Options::timeout

  // Offset of a new buffer in every rank's arena, initially zero. Error kResource reports required
  // size and capacity.
  size_t Allocate(size_t bytes, size_t alignment = 64);
  size_t bytes_used() const;

  std::byte* At(int rank, size_t offset);  // the copy of the buffer in `rank`'s arena
  std::byte* Local(size_t offset) { return At(rank(), offset); }

  // For ranks of other hosts, At(rank, …) is this host's image of that rank's arena. Wrote and
  // Fetch copy bytes between image and arena. For mapped ranks Wrote and Fetch do nothing, so
  // algorithms call them for every rank.
  //
  // Marks [offset, offset + bytes) of `rank`'s copy as written by this rank. The next Raise(rank,
  // …) sends the current bytes, which arrive before the flag does.
  void Wrote(int rank, size_t offset, size_t bytes);
  // Copies the current bytes [offset, offset + bytes) of `rank`'s memory to the image. Waits with
  // the deadline of Wait. The peer's own thread does not take part. The caller must first have
  // waited for a flag after which the bytes no longer change.
  void Fetch(int rank, size_t offset, size_t bytes, const char* stage);
  bool Mapped(int rank) const;  // whether At(rank, …) is that rank's memory itself

  // Flags are 32-bit round numbers. Raise has release semantics: a rank that sees the flag sees all
  // writes before it. It also wakes a sleeping waiter. Only one rank may raise a given flag.
  void Raise(int rank, size_t flag_offset, uint32_t value);
  // Waits until the local flag has reached `value` (modulo 2^32, so rounds may wrap). Spins
  // briefly, then sleeps on the word, so that it works with more ranks than cores. `peer` and
  // `stage` are named in the timeout message. `idle`: waits without a deadline, since the leader
  // may be idle for hours, but an Abort still ends the wait.
  void Wait(size_t flag_offset, uint32_t value, int peer, const char* stage, bool idle = false);
  // Waits with a separate deadline, for ranks that can continue without the peer: returns false
  // after `timeout`.
  bool WaitFor(size_t flag_offset, uint32_t value, std::chrono::milliseconds timeout);
  bool Reached(size_t flag_offset, uint32_t value);  // polls the flag once, without waiting
  // Wait for a flag that a GPU raises in mapped memory. A GPU cannot wake a sleeping rank, so this
  // polls, and yields its core after 50 µs. After 20 ms it polls about 20 times per millisecond.
  void Poll(size_t flag_offset, uint32_t value, int peer, const char* stage);
  uint32_t epoch() const;     // SharedArena::epoch
  bool aborted() const;       // whether every wait throws from now on; any thread may call it
  void CheckAborted() const;  // throws as a wait does
  // Not 0 once the ranks are aborted, for kernels of a GPU that map the arena.
  const uint32_t* abort_word() const;

  // Heartbeat of this rank. Between StartHeartbeat and StopHeartbeat every wait increments the
  // heartbeat counter, and Beat increments it within long computations. Before StartHeartbeat and
  // after StopHeartbeat, Beat has no effect.
  void StartHeartbeat();
  void Beat();
  void StopHeartbeat();
  // Sets the time for which the rank may compute without a heartbeat before it is considered hung;
  // 0: no limit.
  void SetHeartbeatTimeout(std::chrono::milliseconds time);

  // Records in shared memory which requests this rank computes from now on. If the rank process
  // fails, one of these requests may be the cause.
  void RecordRequests(std::span<const uint64_t> ids);

  void Abort(std::string_view reason);

  // A point at which a test may make this rank fail (TestFaults).
  void TestFault(std::string_view point) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
