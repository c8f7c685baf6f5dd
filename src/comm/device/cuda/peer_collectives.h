// Collectives that use only peer memory, without NCCL.
#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <vector>

#include "comm/device/collectives.h"
#include "comm/device/cuda/peer_collectives_launch.h"
#include "comm/device/cuda/peer_memory.h"

namespace switchyard::cuda {

// Each operation launches one kernel, which moves large messages through staging in rounds. Sums
// are in group order, so results depend neither on timing nor on the message size.
class PeerCollectives : public Collectives {
 public:
  // Symmetric allocation: every rank of the world constructs one, with its own group.
  PeerCollectives(PeerMemory& memory, std::span<const int> group, cudaStream_t stream);

  int rank() const override { return set_.rank; }
  int size() const override { return set_.size; }
  void AllReduceSum(float* data, size_t count) override;
  void AllGatherV(const void* in, void* out, std::span<const size_t> counts) override;
  void ReduceScatterV(const float* in, float* out, std::span<const size_t> counts) override;

  // The kernel of an all-reduce depends on its size: tagged data up to `tagged_bytes` (at most
  // kMaxTaggedBytes), one-shot up to `one_shot_bytes` (one barrier), two-shot above (two barriers).
  // All kernels give the same bits.
  void SetLimits(size_t tagged_bytes, size_t one_shot_bytes);

 private:
  template <typename Unit>
  void Gather(const void* in, void* out, std::span<const size_t> counts);

  ChannelSet set_;
  cudaStream_t stream_;
  size_t tagged_bytes_ = 0, one_shot_bytes_ = 0;
};

}  // namespace switchyard::cuda
