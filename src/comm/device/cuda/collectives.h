// Collectives of GPU memory.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/device/collectives.h"
#include "comm/device/cuda/nccl_watch.h"
#include "comm/device/cuda/peer_memory.h"

namespace switchyard::cuda {

struct CollectiveOptions {
  // Gathers and small sums in one kernel over peer memory, large sums through NCCL
  // (--disable-custom-all-reduce: all through NCCL). Where there is no NCCL (libnccl.so.2 is looked
  // for at run time) everything goes over peer memory.
  bool custom_all_reduce = true;
  // Of an all-reduce (a reduce-scatter: four times that). NCCL adds in an order of its own for each
  // size of message, so that a row's sum depends on how many rows there are; without a limit
  // (SIZE_MAX: no NCCL) it does not, and the largest all-reduces take a fourth longer.
  size_t max_custom_bytes = size_t{8} << 20;
  // Of all groups of the rank; null: each has its own. Who waits for the stream on the host does it
  // with this, where there are groups of several hosts.
  std::shared_ptr<NcclWatch> watch;
};

// The group's collectives, enqueued on `stream`. Everything they do can be recorded in a CUDA
// graph: launches depend on sizes alone, and no host code waits. `group`: ranks of the world,
// ascending; every rank of the world constructs those of the same kinds in the same order. Sums
// over peer memory are taken in group order: all members get the same bits, for any message size.
//
// Where any group of the kind has ranks on several hosts (PeerMemory), all of them go through NCCL
// alone: NcclGroup. Error kResource where a rank cannot use it.
std::unique_ptr<Collectives> MakeCollectives(RankComm& comm, PeerMemory& memory,
                                             std::vector<int> group, const std::string& name,
                                             cudaStream_t stream, const CollectiveOptions& options);
// What one such object allocates in peer memory.
size_t CollectiveBytes(const CollectiveOptions& options, int members);

}  // namespace switchyard::cuda
