#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "comm/device/arena_layout.h"
#include "comm/device/futex.h"
#include "core/check.h"
#include "core/error.h"
#include "core/rounding.h"

namespace switchyard {
namespace {

constexpr size_t kPageBytes = 4096;

constexpr size_t kHugePageBytes = size_t{2} << 20;

size_t RoundUpToPage(size_t bytes) { return RoundUp(bytes, kPageBytes); }

}  // namespace

size_t ArenaHeaderBytes(uint64_t world) {
  return RoundUpToPage(sizeof(ArenaHeader)) + world * sizeof(RequestRecord);
}

size_t ArenaBytes(uint64_t world, uint64_t bytes_per_rank, uint64_t kept_per_rank) {
  if (world < 1 || world > kMaxRanksPerArena) {
    throw Invalid("shared memory for {} ranks: want 1 to {}", world, kMaxRanksPerArena);
  }
  const auto limit = static_cast<uint64_t>(std::numeric_limits<off_t>::max());
  if (bytes_per_rank > (limit - ArenaHeaderBytes(world)) / world - kPageBytes) {
    throw Invalid("shared memory of {} bytes for each of {} ranks is out of range", bytes_per_rank,
                  world);
  }
  const size_t arenas = ArenaHeaderBytes(world) + world * RoundUpToPage(bytes_per_rank);
  if (kept_per_rank == 0) return arenas;
  const uint64_t room = (limit - arenas) / world;
  if (room < 2 * kHugePageBytes || kept_per_rank > room - 2 * kHugePageBytes) {
    throw Invalid("kept memory of {} bytes for each of {} ranks is out of range", kept_per_rank,
                  world);
  }
  return RoundUp(arenas, kHugePageBytes) + world * RoundUp(kept_per_rank, kHugePageBytes);
}

SharedArena::Impl::~Impl() {
  remote.reset();  // first, because its threads write to the mapping
  if (base != nullptr) munmap(base, mapped_bytes);
  if (fd >= 0) close(fd);
}

void SharedArena::Impl::Map(size_t bytes) {
  void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (start == MAP_FAILED) {
    throw Resource("cannot map {} bytes of shared memory for the ranks: {}", bytes,
                   std::strerror(errno));
  }
  base = static_cast<std::byte*>(start);
  mapped_bytes = bytes;
}

void SharedArena::Impl::Clear(size_t begin, size_t end) const {
  if (begin >= end) return;
  // A hole reads as zeros and takes no memory.
  if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                static_cast<off_t>(end - begin)) != 0) {
    throw Resource("cannot clear the shared memory of the ranks: {}", std::strerror(errno));
  }
}

std::byte* SharedArena::Impl::At(int rank, size_t offset) const {
  CHECK_GE(rank, 0);
  CHECK_LT(rank, world);
  CHECK_LE(offset, bytes_per_rank);
  return base + ArenaHeaderBytes(world) + static_cast<size_t>(rank) * bytes_per_rank + offset;
}

size_t SharedArena::Impl::kept_end() const { return mapped_bytes - 2 * header().max_message_bytes; }

char* SharedArena::Impl::message(uint32_t epoch) const {
  const size_t room = header().max_message_bytes;
  return reinterpret_cast<char*>(base + mapped_bytes - (1 + epoch % 2) * room);
}

ArenaHeader::SpareState& SharedArena::Impl::spare(int slot) const {
  CHECK(slot >= 0 && slot < kMaxSpares);
  return header().spares[slot];
}

RequestRecord& SharedArena::Impl::requests(int rank) const {
  CHECK(rank >= 0 && rank < world);
  return reinterpret_cast<RequestRecord*>(base + ArenaHeaderBytes(0))[rank];
}

uint32_t* SharedArena::Impl::Flag(int rank, size_t offset) const {
  CHECK_LE(offset + sizeof(uint32_t), bytes_per_rank);
  CHECK_EQ(offset % alignof(uint32_t), 0u);
  return reinterpret_cast<uint32_t*>(At(rank, offset));
}

void SharedArena::Impl::Raise(int rank, size_t offset, uint32_t value) const {
  uint32_t* word = Flag(rank, offset);
  std::atomic_ref<uint32_t>(*word).store(value);
  if (header().ranks[rank].sleeping_on.load() == offset + 1) FutexWakeAll(word);
}

uint64_t SharedArena::Impl::Beat(int rank) const {
  std::atomic<uint64_t>& beats = header().ranks[rank].beats;
  const uint64_t before = beats.load(std::memory_order_relaxed);
  if (before == 0) return 0;
  beats.store(before + 1, std::memory_order_relaxed);
  return before + 1;
}

void SharedArena::Impl::Abort(std::string_view reason) const {
  ArenaHeader& shared = header();
  uint32_t running = ArenaHeader::kRunning;
  if (!shared.abort_state.compare_exchange_strong(running, ArenaHeader::kAborting)) return;
  const size_t length = std::min(reason.size(), shared.abort_reason.size() - 1);
  std::memcpy(shared.abort_reason.data(), reason.data(), length);
  shared.abort_reason[length] = '\0';
  shared.abort_state.store(ArenaHeader::kAborted);
  // An abort does not change the flag words, so a rank that is about to sleep can miss this
  // wake-up. It then sleeps for at most kMaxSleep (symmetric_memory.cc).
  for (int rank = 0; rank < world; ++rank) {
    const uint64_t asleep = shared.ranks[rank].sleeping_on.load();
    if (asleep != 0 && asleep <= bytes_per_rank) FutexWakeAll(Flag(rank, asleep - 1));
  }
}

std::string SharedArena::Impl::AbortReason() const {
  // The aborting process may be killed while it writes the reason, so this wait is short.
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (header().abort_state.load() != ArenaHeader::kAborted) {
    if (std::chrono::steady_clock::now() > give_up) {
      return "the ranks were aborted by a rank that died while it wrote the reason";
    }
    std::this_thread::yield();
  }
  const auto& reason = header().abort_reason;
  return {reason.data(), strnlen(reason.data(), reason.size())};
}

void SharedArena::Impl::ThrowAborted() const { throw Error(ErrorKind::kPeer, AbortReason()); }

SharedArena::SharedArena(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SharedArena::~SharedArena() = default;

std::shared_ptr<SharedArena> SharedArena::Create(int world, size_t bytes_per_rank,
                                                 size_t kept_per_rank, bool messages) {
  const size_t room = messages ? kMaxMessageBytes : 0;
  const size_t bytes =
      ArenaBytes(static_cast<uint64_t>(std::max(world, 0)), bytes_per_rank, kept_per_rank) +
      2 * room;
  auto impl = std::make_unique<Impl>();
  impl->fd = memfd_create("switchyard-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (impl->fd < 0) {
    throw Resource("cannot create shared memory for the ranks: {}", std::strerror(errno));
  }
  // Sealed, so that no process that inherits it can truncate it while others use it.
  if (ftruncate(impl->fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(impl->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw Resource("cannot size shared memory for the ranks to {} bytes: {}", bytes,
                   std::strerror(errno));
  }
  impl->Map(bytes);
  impl->world = world;
  impl->bytes_per_rank = RoundUpToPage(bytes_per_rank);
  impl->kept_per_rank = kept_per_rank;
  auto* header = new (impl->base) ArenaHeader{};
  header->magic = kArenaMagic;
  header->world = static_cast<uint64_t>(world);
  header->bytes_per_rank = impl->bytes_per_rank;
  header->kept_per_rank = kept_per_rank;
  header->max_message_bytes = room;
  return std::shared_ptr<SharedArena>(new SharedArena(std::move(impl)));
}

std::shared_ptr<SharedArena> SharedArena::FromFd(int fd) {
  auto impl = std::make_unique<Impl>();
  impl->fd = fd;
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    throw Invalid("descriptor {} is not an arena of shared memory: {}", fd, std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode) || static_cast<size_t>(status.st_size) < ArenaHeaderBytes(1)) {
    throw Invalid("descriptor {} is not an arena of shared memory", fd);
  }
  impl->Map(static_cast<size_t>(status.st_size));
  const ArenaHeader& header = impl->header();
  if (header.magic != kArenaMagic || header.max_message_bytes > kMaxMessageBytes ||
      ArenaBytes(header.world, header.bytes_per_rank, header.kept_per_rank) +
              2 * header.max_message_bytes !=
          impl->mapped_bytes) {
    throw Invalid("descriptor {} is not an arena of shared memory", fd);
  }
  impl->world = static_cast<int>(header.world);
  impl->bytes_per_rank = header.bytes_per_rank;
  impl->kept_per_rank = header.kept_per_rank;
  return std::shared_ptr<SharedArena>(new SharedArena(std::move(impl)));
}

int SharedArena::fd() const { return impl_->fd; }
int SharedArena::world() const { return impl_->world; }
size_t SharedArena::bytes_per_rank() const { return impl_->bytes_per_rank; }

std::span<std::byte> SharedArena::Kept(int rank) const {
  CHECK(rank >= 0 && rank < world());
  if (impl_->kept_per_rank == 0) return {};
  const size_t stride = RoundUp(impl_->kept_per_rank, kHugePageBytes);
  const size_t begin = impl_->kept_end() - stride * static_cast<size_t>(world() - rank);
  // Has no effect if the kernel does not allow huge pages for shared memory.
  madvise(impl_->base + begin, stride, MADV_HUGEPAGE);
  return {impl_->base + begin, impl_->kept_per_rank};
}

void SharedArena::ClearKept() {
  if (impl_->kept_per_rank == 0) return;
  const size_t stride = RoundUp(impl_->kept_per_rank, kHugePageBytes);
  const size_t end = impl_->kept_end();
  impl_->Clear(end - stride * static_cast<size_t>(world()), end);
}

int SharedArena::joined() const {
  int count = 0;
  for (int rank = 0; rank < world(); ++rank) count += Joined(rank) ? 1 : 0;
  return count;
}

bool SharedArena::Joined(int rank) const {
  CHECK(rank >= 0 && rank < world());
  return impl_->header().ranks[rank].joined.load() != 0;
}

void SharedArena::Abort(std::string_view reason) {
  impl_->Abort(reason);
  if (impl_->remote != nullptr) impl_->remote->Abort(reason);
}

void SharedArena::AbortHere(std::string_view reason) { impl_->Abort(reason); }

bool SharedArena::aborted() const { return impl_->aborted(); }

std::string SharedArena::AbortReason() const {
  return impl_->aborted() ? impl_->AbortReason() : std::string();
}

void SharedArena::EnableEpochs() { impl_->header().epoch.store(1); }

uint32_t SharedArena::epoch() const { return impl_->header().epoch.load(); }

bool SharedArena::Waits(int rank) const {
  CHECK(rank >= 0 && rank < world());
  return has_epochs() && impl_->header().ranks[rank].waits_after.load() == epoch();
}

bool SharedArena::Active(int rank) const {
  CHECK(rank >= 0 && rank < world());
  return impl_->header().ranks[rank].absent.load() == 0;
}

std::vector<int> SharedArena::ActiveRanks() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world(); ++rank) {
    if (Active(rank)) ranks.push_back(rank);
  }
  return ranks;
}

void SharedArena::BeginEpoch(std::string_view endpoint, std::span<const int> absent,
                             std::string_view message) {
  ArenaHeader& header = impl_->header();
  CHECK(has_epochs() && endpoint.size() < header.endpoint.size());
  if (message.size() > header.max_message_bytes)
    throw Invalid("a message of {} bytes for the ranks: want at most {}", message.size(),
                  header.max_message_bytes);
  // Clears the notes and the ranks' arenas. The header and the kept memory keep their contents.
  impl_->Clear(ArenaHeaderBytes(0),
               ArenaBytes(static_cast<uint64_t>(world()), impl_->bytes_per_rank));
  for (ArenaHeader::RankState& rank : header.ranks) {
    rank.joined.store(0);
    rank.sleeping_on.store(0);
    rank.beats.store(0);
    rank.heartbeat_timeout_ms.store(0);
    rank.absent.store(0);
  }
  for (const int rank : absent) header.ranks[rank].absent.store(1);
  header.abort_reason.fill('\0');
  header.abort_state.store(ArenaHeader::kRunning);
  header.endpoint.fill('\0');
  std::ranges::copy(endpoint, header.endpoint.begin());
  const uint32_t next = epoch() + 1;
  std::ranges::copy(message, impl_->message(next));
  header.message_bytes[next % 2].store(message.size());
  header.epoch.fetch_add(1);
  FutexWakeAll(reinterpret_cast<uint32_t*>(&header.epoch));
}

std::string SharedArena::WaitForEpoch(int rank, uint32_t last) {
  constexpr std::chrono::seconds kMaxSleep{10};
  ArenaHeader& header = impl_->header();
  CHECK(rank >= 0 && rank < world() && has_epochs());
  // An absent rank may call this function after the next epoch has begun, and then takes part in
  // it.
  if (header.epoch.load() == last) {
    header.ranks[rank].beats.store(0);
    header.ranks[rank].heartbeat_timeout_ms.store(0);
    header.ranks[rank].waits_after.store(last);
  }
  while (header.epoch.load() == last)
    FutexWait(reinterpret_cast<uint32_t*>(&header.epoch), last, kMaxSleep);
  return endpoint();
}

std::string SharedArena::endpoint() const {
  const ArenaHeader& header = impl_->header();
  return {header.endpoint.data(), strnlen(header.endpoint.data(), header.endpoint.size())};
}

std::string SharedArena::message() const {
  const uint32_t present = epoch();
  const uint64_t bytes = impl_->header().message_bytes[present % 2].load();
  return {impl_->message(present), std::min<uint64_t>(bytes, impl_->header().max_message_bytes)};
}

void SharedArena::ClearSpare(int slot) {
  ArenaHeader::SpareState& spare = impl_->spare(slot);
  spare.place.store(0);
  spare.loaded.store(0);
  spare.load_steps.store(0);
}

void SharedArena::GivePlace(int slot, int rank) {
  CHECK(rank >= 0 && rank < world());
  ArenaHeader::SpareState& spare = impl_->spare(slot);
  spare.place.store(1 + static_cast<uint32_t>(rank));
  FutexWakeAll(reinterpret_cast<uint32_t*>(&spare.place));
}

bool SharedArena::SpareWaits(int slot) const {
  const ArenaHeader::SpareState& spare = impl_->spare(slot);
  return spare.loaded.load() != 0 && spare.place.load() == 0;
}

bool SharedArena::PlaceTaken(int slot) const {
  return impl_->spare(slot).place.load() == ArenaHeader::SpareState::kTaken;
}

int SharedArena::AwaitPlace(int slot) {
  constexpr std::chrono::seconds kMaxSleep{10};
  ArenaHeader::SpareState& spare = impl_->spare(slot);
  spare.loaded.store(1);
  uint32_t place = 0;
  while ((place = spare.place.load()) == 0)
    FutexWait(reinterpret_cast<uint32_t*>(&spare.place), 0, kMaxSleep);
  spare.place.store(ArenaHeader::SpareState::kTaken);
  CHECK(place >= 1 && place <= static_cast<uint32_t>(world()));
  return static_cast<int>(place) - 1;
}

void SharedArena::CountSpareStep(int slot) {
  impl_->spare(slot).load_steps.fetch_add(1, std::memory_order_relaxed);
}

uint64_t SharedArena::spare_steps(int slot) const {
  return impl_->spare(slot).load_steps.load(std::memory_order_relaxed);
}

void SharedArena::CountLoadStep(int rank) {
  CHECK(rank >= 0 && rank < world());
  impl_->header().ranks[rank].load_steps.fetch_add(1, std::memory_order_relaxed);
}

uint64_t SharedArena::load_steps(int rank) const {
  CHECK(rank >= 0 && rank < world());
  return impl_->header().ranks[rank].load_steps.load(std::memory_order_relaxed);
}

uint64_t SharedArena::beats(int rank) const {
  CHECK(rank >= 0 && rank < world());
  return impl_->header().ranks[rank].beats.load(std::memory_order_relaxed);
}

std::chrono::milliseconds SharedArena::HeartbeatTimeout(int rank) const {
  CHECK(rank >= 0 && rank < world());
  return std::chrono::milliseconds(
      impl_->header().ranks[rank].heartbeat_timeout_ms.load(std::memory_order_relaxed));
}

std::optional<std::vector<uint64_t>> SharedArena::RecordedRequests(int rank) const {
  const RequestRecord& record = impl_->requests(rank);
  const uint64_t count = record.count.load();
  if (count > record.ids.size()) return std::nullopt;
  return std::vector<uint64_t>(record.ids.begin(),
                               record.ids.begin() + static_cast<std::ptrdiff_t>(count));
}

void SharedArena::BeatAsParent() {
  impl_->header().parent_beats.fetch_add(1, std::memory_order_relaxed);
}

uint64_t SharedArena::parent_beats() const {
  return impl_->header().parent_beats.load(std::memory_order_relaxed);
}

void SharedArena::Attach(std::unique_ptr<RemoteRanks> remote) {
  CHECK(impl_->remote == nullptr);
  impl_->remote = std::move(remote);
}

std::span<std::byte> RemoteArenaAccess::Bytes(ByteRange range) const {
  if (range.offset > arena_.bytes_per_rank || range.bytes > arena_.bytes_per_rank - range.offset) {
    throw Invalid("{} bytes at {} are outside of a rank's memory of {} bytes", range.bytes,
                  range.offset, arena_.bytes_per_rank);
  }
  return {arena_.At(rank_, range.offset), range.bytes};
}

void RemoteArenaAccess::Raise(uint64_t flag_offset, uint32_t value) const {
  if (flag_offset % alignof(uint32_t) != 0) throw Invalid("misaligned flag offset {}", flag_offset);
  Bytes({flag_offset, sizeof value});
  arena_.Raise(rank_, flag_offset, value);
}

uint64_t RemoteArenaAccess::Beat() const { return arena_.Beat(rank_); }

void RemoteArenaAccess::SetBeats(int rank, uint64_t beats) const {
  arena_.header().ranks[rank].beats.store(beats, std::memory_order_relaxed);
}

bool RemoteArenaAccess::aborted() const { return arena_.aborted(); }
std::string RemoteArenaAccess::AbortReason() const { return arena_.AbortReason(); }
void RemoteArenaAccess::ThrowAborted() const { arena_.ThrowAborted(); }
void RemoteArenaAccess::Abort(std::string_view reason) const { arena_.Abort(reason); }

}  // namespace switchyard
