// Collectives on GPU memory: peer memory kernels, NCCL, or a mix of both by message size.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/device/collectives.h"
#include "comm/device/cuda/nccl_watch.h"
#include "comm/device/cuda/peer_collectives_launch.h"
#include "comm/device/cuda/peer_memory.h"

namespace switchyard::cuda {

// Collectives that use only peer memory, without NCCL.

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

class NcclGroup;

// The communicators of NCCL that groups with the same members and the same stream share, because
// the start of each takes a fifth of a second and some memory of the GPU. Used by the rank's
// thread.
class SharedNccl {
 public:
  // Null: none was made for `members`. All members have the same answer, because they make the same
  // groups in the same order.
  std::shared_ptr<NcclGroup> Find(std::span<const int> members) const;
  void Add(std::span<const int> members, std::shared_ptr<NcclGroup> group);

 private:
  std::vector<std::pair<std::vector<int>, std::weak_ptr<NcclGroup>>> made_;
};

struct CollectiveOptions {
  // Gathers and small reductions use one kernel over peer memory; large reductions use NCCL. With
  // --disable-custom-all-reduce everything uses NCCL. If NCCL is unavailable (libnccl.so.2, loaded
  // at run time), everything uses peer memory. So do two ranks in each epoch after the
  // first one (SymmetricMemory::epoch above 1), whether a rank ended, was restarted as planned, or
  // failed to load.
  bool custom_all_reduce = true;
  // The largest all-reduce over peer memory, in bytes. The limit for reduce-scatter is four times
  // as large. NCCL's reduction order depends on the message size, so a row's sum depends on the
  // number of rows. Without a limit (SIZE_MAX: no NCCL), sums do not depend on the number of rows,
  // but the largest all-reduces take 25 % longer.
  size_t max_custom_bytes = size_t{8} << 20;
  // The watch of NCCL operations, shared by all groups of the rank; null: each group creates one.
  // If groups span hosts, the rank's thread waits for the stream through this watch.
  std::shared_ptr<NcclWatch> watch;
  // Null, or ranks on several hosts: each group has a communicator of its own.
  SharedNccl* shared = nullptr;
};

// Collectives of `group`, enqueued on `stream`. All operations can be captured in a CUDA graph:
// launches depend on sizes and addresses only, and no host code waits. `group`: ranks of `memory`,
// ascending, which are numbered within the stage. Construction is a collective over comm.tp: every
// rank of the stage constructs groups of the same kinds in the same order. Sums over peer memory
// are in group order: all members get the same bits, for any message size.
//
// If any group of a kind has ranks on several hosts, all groups of this kind with several members
// use NCCL alone (NcclGroup). Error kResource if a rank cannot use NCCL.
std::unique_ptr<Collectives> MakeCollectives(RankComm& comm, PeerMemory& memory,
                                             std::vector<int> group, const std::string& name,
                                             cudaStream_t stream, const CollectiveOptions& options);
// Bytes of peer memory that one Collectives object allocates.
size_t CollectiveBytes(const CollectiveOptions& options, int members);

}  // namespace switchyard::cuda
