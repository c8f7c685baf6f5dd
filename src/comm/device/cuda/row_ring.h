// Hidden rows of pipeline stages, from GPU to GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/device/communicator.h"
#include "comm/device/cuda/peer_memory.h"

namespace switchyard::cuda {

// Messages of float32 rows from the GPU of a rank to the GPU of the rank in the same place of the
// next pipeline stage. Each rank owns a ring of places, to which the previous stage writes over
// NVLink or PCIe. All work is enqueued on the rank's stream: the receiver's stream waits for the
// rows, and the sender's stream waits until a place is free. The host does not wait.
//
// A wait on a stream lasts at most the timeout. So before a rank enqueues Receive, it has to know
// that the previous stage has enqueued the matching Send. After a wait that failed, nothing is
// written or announced, and CheckTimeouts throws. Not for captured passes: each message has a
// number. Owned by the rank's device; used by the rank's thread only.
class RowRing {
 public:
  // Collective over comm.pp, with the rank's GPU current. Each place has room for `place_bytes`.
  // All stages are on one host. Error kInvalid if there are more than kMaxPeers stages.
  RowRing(RankComm& comm, size_t place_bytes, int places, std::chrono::milliseconds timeout);
  // Bytes of GPU memory that a rank allocates.
  static size_t BytesPerRank(size_t place_bytes, int places);

  // Rows are in the memory of this rank's GPU, at most place_bytes. Messages without rows are not
  // sent. The previous and the next stage have equal counts.
  void Send(std::span<const float> rows, cudaStream_t stream);
  void Receive(std::span<float> rows, cudaStream_t stream);

  // Call after stream synchronization. If a wait failed, throws Error kTimeout, which names both
  // ranks with their stages.
  void CheckTimeouts() const { memory_.CheckTimeouts(); }

 private:
  size_t PlaceOf(uint64_t message) const;

  PeerMemory memory_;  // of the ranks with the same place in each stage
  const int stage_;
  const size_t place_bytes_, places_;
  // Offsets. `arrived_`, at the receiver, counts messages sent. `read_`, at the sender, counts
  // messages received.
  const size_t ring_, arrived_, read_;
  uint64_t sent_ = 0, received_ = 0;  // numbers of messages; flags have their low 32 bits
};

// The kernels, in row_ring.cu. Internal to comm/device/cuda.

// Waits until the flag reaches `value`.
cudaError_t StartAwait(const uint32_t* flag, uint32_t value, const WaitLimit& limit,
                       WaitStage stage, int peer, cudaStream_t stream);
// Copies `count` floats between addresses that are multiples of 16. Does nothing after a wait that
// failed.
cudaError_t StartCopyRows(const float* from, float* to, size_t count, const WaitLimit& limit,
                          cudaStream_t stream);
// Raises the flag, unless a wait has failed.
cudaError_t StartRaise(uint32_t* flag, uint32_t value, const WaitLimit& limit, cudaStream_t stream);
// Loads the kernels on the current device, as LoadAllReduce does.
cudaError_t LoadRowRing();

}  // namespace switchyard::cuda
