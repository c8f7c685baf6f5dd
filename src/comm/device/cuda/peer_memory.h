// Device memory that the GPUs of one host map of one another: SymmetricMemory's counterpart.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>

#include "comm/device/communicator.h"
#include "comm/device/cuda/wait.h"

#ifdef __CUDACC__
#define SWITCHYARD_HOST_DEVICE __host__ __device__
#else
#define SWITCHYARD_HOST_DEVICE
#endif

namespace switchyard::cuda {

constexpr int kMaxPeers = 16;

// The same buffer on each rank, for kernels; passed by value.
struct PeerPointers {
  std::byte* at[kMaxPeers] = {};
  template <typename T>
  SWITCHYARD_HOST_DEVICE T* As(int rank) const {
    return reinterpret_cast<T*>(at[rank]);
  }
};

// One rank's handle. Each rank owns `bytes` of its GPU, zeroed, and can read and write those of its
// peers over NVLink or PCIe: ranks that are threads of one process by peer access, rank processes
// through CUDA IPC. NVLink multicast is not used. The rank's thread constructs it, with its GPU
// current; all ranks of the world do so together (it is a collective over comm.tp). Error kResource
// says which two GPUs cannot reach one another.
//
// Where the world spans hosts, a rank reaches those of its own host only; the others' GPUs are
// reached through NCCL (collectives.h).
//
// Allocation is symmetric, as SymmetricMemory's. There is no free.
class PeerMemory {
 public:
  // Rank r is on host r / ranks_per_host; 0: all are on one.
  PeerMemory(RankComm& comm, size_t bytes, std::chrono::milliseconds timeout,
             int ranks_per_host = 0);
  ~PeerMemory();  // collective: peers may still read

  int rank() const;
  int world() const;
  size_t bytes_used() const;

  // Offset of a new buffer; Error kResource names need and capacity.
  size_t Allocate(size_t bytes, size_t alignment = 256);
  std::byte* At(int rank, size_t offset) const;  // of a rank that is reached
  std::byte* Local(size_t offset) const { return At(rank(), offset); }
  PeerPointers Pointers(size_t offset) const;      // [world], all of one host
  bool Reaches(std::span<const int> ranks) const;  // whether all of them are on this rank's host
  // Whether each of `ranks` has a GPU for itself among them (in tests several share one).
  bool OneGpuEach(std::span<const int> ranks) const;

  std::chrono::milliseconds timeout() const;
  // For kernels that wait (wait.cuh).
  WaitLimit wait_limit() const;
  // After the stream was waited for: Error kTimeout "rank 1 waited 30 s for rank 3 in dispatch …"
  // where a kernel gave up.
  void CheckWaits() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::cuda
