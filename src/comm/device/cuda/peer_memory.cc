#include "comm/device/cuda/peer_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/log.h"

namespace switchyard::cuda {
namespace {

// The driver sub-allocates small allocations from blocks of this size, and an IPC handle covers a
// whole block.
constexpr size_t kBlockBytes = size_t{2} << 20;

const char* StageName(int32_t stage) {
  switch (static_cast<WaitStage>(stage)) {
    case WaitStage::kDispatch:
      return "dispatch";
    case WaitStage::kCombine:
      return "combine";
    case WaitStage::kAllReduce:
      return "all-reduce";
    case WaitStage::kAllGather:
      return "all-gather";
    case WaitStage::kReduceScatter:
      return "reduce-scatter";
    case WaitStage::kBarrier:
      return "a barrier";
    case WaitStage::kStageRows:
      return "pipeline: hidden rows";
    case WaitStage::kStageRoom:
      return "pipeline: hidden rows, buffer of the receiver";
  }
  return "unknown stage";
}

[[noreturn]] void ThrowNoPeerAccess(const PeerInfo& mine, const PeerInfo& theirs, const char* why) {
  throw Error(
      ErrorKind::kResource,
      fmt::format("{} cannot access the GPU memory of {}: {}", Describe(mine), Describe(theirs),
                  why),
      "NVLink or PCIe peer access is required between all GPUs, and all ranks must see all GPUs: "
      "use the same CUDA_VISIBLE_DEVICES");
}

// Memory of ended epochs of this process, which other ranks may still access until the next epoch.
class AbandonedMemory {
 public:
  static AbandonedMemory& Get() {
    static auto* const memory =
        new AbandonedMemory;  // never freed, as the memory of the last epoch
    return *memory;
  }
  // `epoch`: 0 if the arena has no epochs. Then the memory is kept until the process ends.
  void Add(uint32_t epoch, DeviceMemory memory, PinnedMemory report) {
    const std::lock_guard lock(mutex_);
    entries_.push_back({epoch, std::move(memory), std::move(report)});
  }
  // Frees the memory of epochs before `epoch`, whose ranks have ended or have left them.
  void Free(uint32_t epoch) {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [epoch](const Entry& e) { return e.epoch != 0 && e.epoch < epoch; });
  }

 private:
  struct Entry {
    uint32_t epoch = 0;
    DeviceMemory memory;
    PinnedMemory report;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace

struct PeerMemory::Impl {
  Impl(SymmetricMemory& arena_in, Communicator& members_in, int ranks_per_host_in)
      : arena(arena_in),
        members(members_in),
        rank(members_in.rank()),
        ranks_per_host(ranks_per_host_in > 0 ? ranks_per_host_in : members_in.size()) {}

  SymmetricMemory& arena;
  Communicator& members;
  int rank, ranks_per_host;
  size_t bytes = 0, used = 0;
  std::chrono::milliseconds timeout{0};
  int exceptions = std::uncaught_exceptions();
  DeviceMemory memory;
  PinnedMemory report;
  WaitTimeoutReport* report_on_device = nullptr;
  std::vector<PeerInfo> cards;   // [world]
  std::vector<std::byte*> base;  // [world] mapped in this process; null: on another host
  std::vector<void*> imported;   // opened from other processes

  bool OnOwnHost(int peer) const { return peer / ranks_per_host == rank / ranks_per_host; }
  std::jthread abort_watch;  // with epochs

  void Exchange(const PeerInfo& card);
  void Map(int peer);
  void CloseImported();
  void Close();
  void EndWaits();
  void WatchAborts();
  void Drain();
};

// From now on no kernel waits for a peer, as after a timeout.
void PeerMemory::Impl::EndWaits() {
  volatile WaitTimeoutReport& shared = *report.as<WaitTimeoutReport>();
  shared.failed = 1;
}

// Ends the waits of kernels when the arena is aborted. The rank's thread cannot, because it may be
// waiting for these kernels.
void PeerMemory::Impl::WatchAborts() {
  static constexpr std::chrono::milliseconds kPoll{2};
  abort_watch = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested() && !arena.aborted()) std::this_thread::sleep_for(kPoll);
    if (!stop.stop_requested()) EndWaits();
  });
}

// After an error in an epoch: waits for this rank's GPU and closes the memory of the peers, so that
// they can free it in the next epoch. Throws if the GPU has failed.
void PeerMemory::Impl::Drain() {
  EndWaits();
  Check(cudaDeviceSynchronize(), "end of an epoch");
  CloseImported();
}

void PeerMemory::Impl::CloseImported() {
  for (void* mapped : imported) {
    const cudaError_t error = cudaIpcCloseMemHandle(mapped);
    if (error == cudaSuccess) continue;
    cudaGetLastError();  // the process of the peer may have ended
    LOG_DEBUG("memory of a peer is not closed: {}", cudaGetErrorString(error));
  }
}

void PeerMemory::Impl::Map(int peer) {
  const PeerInfo &mine = cards[rank], &theirs = cards[peer];
  if (mine.process == theirs.process) {
    base[peer] = theirs.memory;
    if (mine.device == theirs.device) return;
    int can = 0;
    Check(cudaDeviceCanAccessPeer(&can, mine.device, theirs.device), "peer access query");
    if (!can) ThrowNoPeerAccess(mine, theirs, "the GPUs have no peer access");
    const cudaError_t error = cudaDeviceEnablePeerAccess(theirs.device, 0);
    if (error == cudaSuccess) return;
    cudaGetLastError();
    if (error != cudaErrorPeerAccessAlreadyEnabled)
      ThrowNoPeerAccess(mine, theirs, cudaGetErrorString(error));
    return;
  }
  if (!theirs.exportable)
    ThrowNoPeerAccess(mine, theirs, "the owner's process cannot export it (CUDA IPC)");
  void* mapped = nullptr;
  const cudaError_t error =
      cudaIpcOpenMemHandle(&mapped, theirs.handle, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    cudaGetLastError();
    ThrowNoPeerAccess(mine, theirs, cudaGetErrorString(error));
  }
  imported.push_back(mapped);
  base[peer] = static_cast<std::byte*>(mapped);
}

void PeerMemory::Impl::Exchange(const PeerInfo& card) {
  const auto size = static_cast<size_t>(members.size());
  cards.resize(size);
  members.AllGather(&card, cards.data(), sizeof card);
  CheckPeerInfos(cards, ranks_per_host);
  base.resize(size);
  base[static_cast<size_t>(rank)] = memory.data();
  for (int peer = 0; peer < members.size(); ++peer) {
    if (peer != rank && OnOwnHost(peer)) Map(peer);
  }
  members.Barrier("exchange of peer memory");
}

// After the first barrier no rank reads peer memory. Handles are closed before the memory is freed.
void PeerMemory::Impl::Close() {
  Check(cudaDeviceSynchronize(), "final synchronization of peer memory");
  members.Barrier("release of peer memory");
  for (void* mapped : imported) Check(cudaIpcCloseMemHandle(mapped), "release of peer memory");
  members.Barrier("release of peer memory");
}

PeerMemory::PeerMemory(RankComm& comm, size_t bytes, std::chrono::milliseconds timeout,
                       int ranks_per_host)
    : PeerMemory(comm, *comm.tp, bytes, timeout, ranks_per_host) {}

PeerMemory::PeerMemory(RankComm& comm, Communicator& members, size_t bytes,
                       std::chrono::milliseconds timeout, int ranks_per_host)
    : impl_(std::make_unique<Impl>(*comm.memory, members, ranks_per_host)) {
  Impl& my = *impl_;
  AbandonedMemory::Get().Free(my.arena.epoch());
  my.bytes = bytes;
  my.timeout = timeout;
  my.memory =
      DeviceMemory((std::max<size_t>(bytes, 1) + kBlockBytes - 1) / kBlockBytes * kBlockBytes);
  my.report = PinnedMemory(sizeof(WaitTimeoutReport));
  new (my.report.as<void>()) WaitTimeoutReport;
  void* on_device = nullptr;
  Check(cudaHostGetDevicePointer(&on_device, my.report.as<void>(), 0), "mapping the wait report");
  my.report_on_device = static_cast<WaitTimeoutReport*>(on_device);

  PeerInfo card = MakePeerInfo(my.memory.data(), bytes);
  card.rank = comm.mesh.rank();
  if (comm.mesh.pp() > 1) card.stage = comm.mesh.pp_rank();
  try {
    my.Exchange(card);
  } catch (...) {  // peers may have mapped this memory
    my.CloseImported();
    AbandonedMemory::Get().Add(my.arena.epoch(), std::move(my.memory), std::move(my.report));
    throw;
  }
  if (my.arena.epoch() != 0) my.WatchAborts();
}

PeerMemory::~PeerMemory() {
  // After an error a rank does not wait for its peers. They may still read its memory, which is
  // therefore kept until the next epoch, or until the process ends.
  bool keep = std::uncaught_exceptions() > impl_->exceptions;
  uint32_t epoch = 0;
  if (keep && impl_->arena.epoch() != 0) {
    try {
      impl_->Drain();
      epoch = impl_->arena.epoch();
    } catch (const std::exception& error) {
      LOG_DEBUG("peer memory of rank {} is not closed: {}", impl_->cards[rank()].rank,
                error.what());
    }
  }
  if (!keep) {
    try {
      impl_->Close();
    } catch (const std::exception& error) {
      LOG_DEBUG("peer memory of rank {} is not released: {}", impl_->cards[rank()].rank,
                error.what());
      keep = true;
    }
  }
  impl_->abort_watch = std::jthread();  // before the report moves
  if (keep) AbandonedMemory::Get().Add(epoch, std::move(impl_->memory), std::move(impl_->report));
}

int PeerMemory::rank() const { return impl_->rank; }
int PeerMemory::world() const { return static_cast<int>(impl_->base.size()); }
size_t PeerMemory::bytes_used() const { return impl_->used; }
std::chrono::milliseconds PeerMemory::timeout() const { return impl_->timeout; }

size_t PeerMemory::Allocate(size_t bytes, size_t alignment) {
  CHECK(std::has_single_bit(alignment));
  const size_t offset = (impl_->used + alignment - 1) & ~(alignment - 1);
  if (offset > impl_->bytes || bytes > impl_->bytes - offset) {
    throw Resource("peer memory of {} bytes per rank is full: {} used, {} more requested",
                   impl_->bytes, impl_->used, bytes);
  }
  impl_->used = offset + bytes;
  return offset;
}

std::byte* PeerMemory::At(int rank, size_t offset) const {
  CHECK_GE(rank, 0);
  CHECK_LT(rank, world());
  CHECK_LE(offset, impl_->bytes);
  CHECK(impl_->base[static_cast<size_t>(rank)] != nullptr);
  return impl_->base[static_cast<size_t>(rank)] + offset;
}

PeerPointers PeerMemory::Pointers(size_t offset) const {
  CHECK_LE(world(), kMaxPeers);
  PeerPointers pointers;
  for (int r = 0; r < world(); ++r) pointers.at[r] = At(r, offset);
  return pointers;
}

bool PeerMemory::OnThisHost(std::span<const int> ranks) const {
  return std::ranges::all_of(ranks, [this](int r) { return impl_->OnOwnHost(r); });
}

bool PeerMemory::HasDistinctGpus(std::span<const int> ranks) const {
  std::set<std::string> gpus;
  for (const int r : ranks) {
    const PeerInfo& card = impl_->cards[static_cast<size_t>(r)];
    gpus.insert(std::string(card.host.data(), strnlen(card.host.data(), card.host.size())) + ' ' +
                card.bus_id.data());
  }
  return gpus.size() == ranks.size();
}

WaitLimit PeerMemory::wait_limit() const {
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(impl_->timeout);
  return {.report = impl_->report_on_device,
          .nanoseconds = static_cast<uint64_t>(nanoseconds.count()),
          .rank = impl_->rank};
}

void PeerMemory::CheckTimeouts() const {
  if (impl_->arena.epoch() != 0) impl_->arena.CheckAborted();
  const volatile WaitTimeoutReport& report = *impl_->report.as<WaitTimeoutReport>();
  if (report.failed == 0) return;
  const int peer = report.peer;
  const std::string who =
      peer >= 0 && peer < world() ? Describe(impl_->cards[peer]) : fmt::format("{}", peer);
  throw Error(ErrorKind::kTimeout,
              fmt::format("{} waited {:g} s for {} in {} (round {}, seen {})",
                          Describe(impl_->cards[rank()]),
                          std::chrono::duration<double>(impl_->timeout).count(), who,
                          StageName(report.stage), static_cast<uint32_t>(report.wanted),
                          static_cast<uint32_t>(report.seen)));
}

}  // namespace switchyard::cuda
