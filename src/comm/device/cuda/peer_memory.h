// Device memory mapped between the GPUs of one host: the GPU counterpart of SymmetricMemory.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/device/communicator.h"
#include "comm/device/cuda/wait.h"

namespace switchyard::cuda {

// Description of a rank's peer memory, exchanged between ranks. Internal to comm/device/cuda.

struct PeerInfo {
  std::array<char, 40> host = {};    // boot id: unique per host and boot
  std::array<char, 32> bus_id = {};  // PCI bus id of the GPU, as text
  std::array<char, 64> process = {};
  int32_t rank = 0;         // in the world
  int32_t stage = -1;       // pipeline stage; -1: there is one stage
  int32_t device = 0;       // device index in its process
  bool exportable = false;  // whether `handle` is valid: not every system has CUDA IPC
  uint64_t bytes = 0;
  std::byte* memory = nullptr;  // address in its process
  cudaIpcMemHandle_t handle = {};
};

// Names this process, also among containers of one host.
std::array<char, 64> ProcessName();
// Describes memory on the current device.
PeerInfo MakePeerInfo(std::byte* memory, size_t bytes);
// "rank 3 (GPU 2, 0000:19:00.0)", or with stages "rank 3 (stage 1, GPU 2, 0000:19:00.0)"
std::string Describe(const PeerInfo& card);

// Error kInvalid if a host has too many ranks, if sizes differ, or if a group of `ranks_per_host`
// consecutive ranks (0: all ranks) spans hosts.
void CheckPeerInfos(std::span<const PeerInfo> cards, int ranks_per_host = 0);

}  // namespace switchyard::cuda

#ifdef __CUDACC__
#define SWITCHYARD_HOST_DEVICE __host__ __device__
#else
#define SWITCHYARD_HOST_DEVICE
#endif

namespace switchyard::cuda {

constexpr int kMaxPeers = 16;

// Addresses of one symmetric buffer on all ranks, passed to kernels by value.
struct PeerPointers {
  std::byte* at[kMaxPeers] = {};
  template <typename T>
  SWITCHYARD_HOST_DEVICE T* As(int rank) const {
    return reinterpret_cast<T*>(at[rank]);
  }
};

// One rank's access to the GPU memory of a group of ranks, usually those of its stage. Each rank
// owns `bytes` of GPU memory, zeroed, and can read and write its peers' memory over NVLink or PCIe.
// Ranks that are threads of one process use peer access, rank processes CUDA IPC. NVLink multicast
// is not used. Construction is a collective over the group; the rank's thread calls it with its GPU
// current. Error kResource names two GPUs without peer access.
//
// Ranks below are indices in the group; errors have ranks of the world. If the group spans hosts, a
// rank accesses memory of ranks on its own host only; NCCL connects the others (collectives.h).
//
// Allocation is symmetric, as in SymmetricMemory. There is no free.
//
// If the arena has epochs (SharedArena), an abort ends the waits of this rank's kernels within
// milliseconds, and the destructor waits for the rank's GPU. Then the rank can begin another epoch
// with a new PeerMemory. The memory is freed in that epoch, when no rank can access it any more.
class PeerMemory {
 public:
  // Of the group comm.tp. Rank r is on host r / ranks_per_host; 0: all ranks are on one host.
  PeerMemory(RankComm& comm, size_t bytes, std::chrono::milliseconds timeout,
             int ranks_per_host = 0);
  // Of another group of `comm`, which outlives this object.
  PeerMemory(RankComm& comm, Communicator& members, size_t bytes, std::chrono::milliseconds timeout,
             int ranks_per_host = 0);
  ~PeerMemory();  // collective: peers may still read

  int rank() const;
  int world() const;
  size_t bytes_used() const;

  // Returns the offset of a new buffer; Error kResource reports need and capacity.
  size_t Allocate(size_t bytes, size_t alignment = 256);
  std::byte* At(int rank, size_t offset) const;  // `rank` is on this host
  std::byte* Local(size_t offset) const { return At(rank(), offset); }
  PeerPointers Pointers(size_t offset) const;         // [world()], all on one host
  bool OnThisHost(std::span<const int> ranks) const;  // whether all are on this rank's host
  // Whether each of `ranks` has a GPU of its own. In tests, several ranks may share a GPU.
  bool HasDistinctGpus(std::span<const int> ranks) const;

  std::chrono::milliseconds timeout() const;
  // Timeout argument of kernels that wait for peers (wait.cuh).
  WaitLimit wait_limit() const;
  // Call after stream synchronization. If the arena was aborted, throws Error kPeer with the
  // reason, because kernels may not have waited. If a kernel timed out, throws Error kTimeout, such
  // as "rank 1 waited 30 s for rank 3 in dispatch …".
  void CheckTimeouts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::cuda
