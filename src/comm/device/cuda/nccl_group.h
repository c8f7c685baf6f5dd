// NCCL communicator of a group of ranks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include "comm/device/collectives.h"
#include "comm/device/cuda/nccl_library.h"
#include "comm/device/cuda/nccl_watch.h"

namespace switchyard::cuda {

// A message to or from a member, in device memory.
struct NcclMessage {
  int peer = 0;  // rank in the group; may be the own rank
  std::byte* data = nullptr;
  size_t bytes = 0;
};

// A non-blocking communicator. The host waits for a peer at most for the timeout of the watch. If
// the peer is missing or lost, the wait throws Error kTimeout or kPeer. NCCL kernels have no
// timeout, so the host waits for streams through `watch`. NCCL chooses the reduction order by
// message size; all members get the same bits.
class NcclGroup : public Collectives {
 public:
  // Collective over the members. `name` is used in error messages.
  NcclGroup(const NcclLibrary& nccl, const NcclUniqueId& id, int rank, int size, std::string name,
            cudaStream_t stream, std::shared_ptr<NcclWatch> watch);
  ~NcclGroup() override;
  NcclGroup(const NcclGroup&) = delete;

  // CHECKs that `group` is an NcclGroup. MakeCollectives returns one for every group that spans
  // hosts.
  static NcclGroup& From(Collectives* group);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void AllReduceSum(float* data, size_t count) override;
  void AllGatherV(const void* in, void* out, std::span<const size_t> counts) override;
  void ReduceScatterV(const float* in, float* out, std::span<const size_t> counts) override;

  // Sends and receives all messages as one NCCL group call, enqueued on `stream`. Messages between
  // two members match in order and have equal sizes at both ends; zero-size messages may be
  // omitted. Can be captured after ConnectPairs.
  void Exchange(std::span<const NcclMessage> sends, std::span<const NcclMessage> receives,
                cudaStream_t stream);
  // Opens the connections for Exchange, which NCCL cannot do during graph capture. Collective over
  // the members; blocks.
  void ConnectPairs();

  NcclWatch& watch() const { return *watch_; }
  // The asynchronous error of the communicator, as text; empty: none.
  std::string AsyncError() const;
  // Terminates the running kernels of the communicator. Every later call throws Error kPeer.
  void Abort();

 private:
  void CheckAlive() const;
  void Finish(int result, const char* what);
  void WaitForStream();
  void Connect();

  const NcclLibrary& nccl_;
  int rank_, size_;
  std::string name_;
  cudaStream_t stream_;
  std::shared_ptr<NcclWatch> watch_;
  int exceptions_ = std::uncaught_exceptions();
  NcclHandle* handle_ = nullptr;  // null: aborted
};

}  // namespace switchyard::cuda
