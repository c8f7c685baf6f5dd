// Memory layout of a shared arena. Internal to comm/device.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "comm/device/remote_ranks.h"
#include "comm/device/symmetric_memory.h"

namespace switchyard {

inline constexpr uint64_t kArenaMagic = 0x414e455241445953;  // "SYDARENA"
inline constexpr int kMaxRanksPerArena = 256;
// Header at the start of the mapping. After it come one RequestRecord per
// rank, the ranks' arenas in rank order (page-aligned), and the ranks' kept memory (aligned to huge
// pages). All processes run the same build, so the layout needs no version. Lock-free atomics work
// across processes.
struct ArenaHeader {
  enum AbortState : uint32_t { kRunning, kAborting, kAborted };  // kAborting: reason being written

  struct alignas(64) RankState {
    std::atomic<uint32_t> joined;
    // 1 + the offset of the flag on which the rank's thread sleeps; 0 while it is awake.
    std::atomic<uint64_t> sleeping_on;
    // Heartbeats of the serving rank; 0 before it serves and after its end. For a rank of another
    // host: the last value that has arrived.
    std::atomic<uint64_t> beats;
    // Milliseconds for which the rank may compute without a heartbeat; 0: no limit.
    std::atomic<uint32_t> heartbeat_timeout_ms;
    std::atomic<uint32_t> waits_after;  // the rank waits for the epoch after this one
    std::atomic<uint32_t> absent;       // 1: the epoch runs without the rank
    std::atomic<uint64_t> load_steps;   // CountLoadStep
  };
  struct alignas(64) SpareState {
    // 1 + the rank whose place the spare takes; 0: none yet; kTaken: the spare has read it.
    static constexpr uint32_t kTaken = ~uint32_t{0};
    std::atomic<uint32_t> place;
    std::atomic<uint32_t> loaded;      // 1: the spare has loaded and waits for a place
    std::atomic<uint64_t> load_steps;  // CountSpareStep
  };

  uint64_t magic;
  uint64_t world;
  uint64_t bytes_per_rank;
  uint64_t kept_per_rank;  // bytes of kept memory
  // Room for SharedArena::message of one epoch. There is room for two: a rank that loads may read
  // the message of its epoch while the parent writes that of the next one.
  uint64_t max_message_bytes;
  alignas(64) std::atomic<uint32_t> abort_state;
  std::array<char, 1020> abort_reason;
  alignas(64) std::atomic<uint64_t> parent_beats;  // 0: no process watches the ranks
  alignas(64) std::atomic<uint32_t> epoch;         // 0: epochs are not enabled
  std::array<char, 252> endpoint;  // the front's control endpoint; set from the second epoch on
  std::array<std::atomic<uint64_t>, 2> message_bytes;  // of even and of odd epochs
  std::array<SpareState, SharedArena::kMaxSpares> spares;
  std::array<RankState, kMaxRanksPerArena> ranks;
};
// The ids of the requests that a rank computes. The process that watches the rank reads them. Pages
// of the array that hold no ids are never touched, so they take no memory.
struct RequestRecord {
  // Value of `count` while the record is being written, or if there are too many ids.
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  std::atomic<uint64_t> count;
  std::array<uint64_t, (size_t{1} << 13) - 1> ids;
};
static_assert(sizeof(RequestRecord) == size_t{64} << 10);

static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// One process's mapping of an arena. The sizes are copies: a peer that overwrites the header does
// not change this process's bounds.
struct SharedArena::Impl {
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  int fd = -1;
  int world = 0;
  size_t bytes_per_rank = 0, kept_per_rank = 0;
  std::byte* base = nullptr;
  size_t mapped_bytes = 0;
  std::unique_ptr<RemoteRanks> remote;  // null if all ranks are on this host

  ArenaHeader& header() const { return *reinterpret_cast<ArenaHeader*>(base); }
  size_t kept_end() const;              // the offset after all kept memory
  char* message(uint32_t epoch) const;  // [max_message_bytes]
  ArenaHeader::SpareState& spare(int slot) const;
  RequestRecord& requests(int rank) const;
  std::byte* At(int rank, size_t offset) const;
  uint32_t* Flag(int rank, size_t offset) const;
  void Raise(int rank, size_t offset, uint32_t value) const;  // `rank` is on this host

  // Adds a heartbeat of `rank`, unless its heartbeat counter is 0. Returns the counter. Only the
  // rank's thread may call it.
  uint64_t Beat(int rank) const;

  void Map(size_t bytes);  // maps `fd`
  // Frees the memory of these bytes of the mapping, which then read as zeros.
  void Clear(size_t begin, size_t end) const;
  bool aborted() const {
    return header().abort_state.load(std::memory_order_seq_cst) != ArenaHeader::kRunning;
  }
  void Abort(std::string_view reason) const;  // aborts the ranks of this host
  std::string AbortReason() const;            // call after aborted() is true
  [[noreturn]] void ThrowAborted() const;
};

// Bytes before the first rank's arena (a whole number of pages), and bytes of the whole mapping.
// Error kInvalid if a size is out of range.
size_t ArenaHeaderBytes(uint64_t world);
// Without the messages.
size_t ArenaBytes(uint64_t world, uint64_t bytes_per_rank, uint64_t kept_per_rank = 0);

}  // namespace switchyard
