// The shared arena of the ranks of a host, mapped for the GPU of one of them.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/device/cuda/peer_memory.h"
#include "comm/device/cuda/wait.h"
#include "comm/device/symmetric_memory.h"
#include "core/cuda/runtime.h"

namespace switchyard::cuda {

// Lets kernels of a rank's GPU read and write symmetric memory, to exchange data with ranks on CPUs
// of the same host. A kernel writes data, then raises a flag after a system-wide fence
// (wait.cuh); the CPU waits with SymmetricMemory::Poll, because a GPU cannot wake it. In the other
// direction the CPU raises a flag as usual, and a kernel polls it over the link.
//
// Used by the rank's thread, with its GPU current. Borrows `memory`, whose ranks are all on this
// host.
class HostLink {
 public:
  // `timeout`: limit of kernels that wait for a flag.
  HostLink(SymmetricMemory& memory, std::chrono::milliseconds timeout);
  ~HostLink();  // waits for kernels that use the memory
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;

  // Allocates symmetric memory as SymmetricMemory::Allocate does: ranks on CPUs make the same
  // allocation. Pins its first `used` bytes of each rank, and returns the GPU's addresses by rank.
  // Called once. Error kResource if the memory cannot be pinned.
  PeerPointers Allocate(size_t bytes, size_t used);

  int rank() const { return memory_.rank(); }
  // Timeout argument of kernels that wait for CPUs (wait.cuh).
  WaitLimit wait_limit() const;
  // SymmetricMemory::abort_word for kernels. A kernel that waits reads it too, so that the stream
  // drains after an abort, also if the rank's thread frees memory of the GPU and does not call
  // Wait.
  const uint32_t* aborted() const { return aborted_; }
  // Call after stream synchronization. Error kTimeout names the two ranks if a kernel timed out.
  void CheckTimeouts() const;
  // Waits for `event`, and throws the reason if the ranks are aborted meanwhile
  // (SymmetricMemory::CheckAborted). For CudaDevice::SetWait.
  void Wait(cudaEvent_t event);

 private:
  // Pins host memory; returns its address for the GPU.
  std::byte* Pin(std::byte* begin, size_t bytes);

  SymmetricMemory& memory_;
  const std::chrono::milliseconds timeout_;
  PinnedMemory report_;
  WaitTimeoutReport* report_on_device_ = nullptr;
  const uint32_t* aborted_ = nullptr;
  std::vector<void*> pinned_;  // ranges to unpin
  bool allocated_ = false;
};

}  // namespace switchyard::cuda
