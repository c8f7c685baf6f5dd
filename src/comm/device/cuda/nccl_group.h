// A communicator of NCCL.
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

// What goes to a member or comes from it. Device memory.
struct NcclMessage {
  int peer = 0;  // in the group; its own rank too
  std::byte* data = nullptr;
  size_t bytes = 0;
};

// Non-blocking: whatever waits for a peer on the host ends by the watch's timeout, with Error
// kTimeout or kPeer. Kernels of NCCL have no deadline: streams are waited for with `watch`. The
// order of its sums is NCCL's choice, by size; all members get the same bits.
class NcclGroup : public Collectives {
 public:
  // All members together. `name` is for messages.
  NcclGroup(const NcclLibrary& nccl, const NcclUniqueId& id, int rank, int size, std::string name,
            cudaStream_t stream, std::shared_ptr<NcclWatch> watch);
  ~NcclGroup() override;
  NcclGroup(const NcclGroup&) = delete;

  // CHECKs that it is one, as groups of several hosts are (MakeCollectives).
  static NcclGroup& From(Collectives* group);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void AllReduceSum(float* data, size_t count) override;
  void AllGatherV(const void* in, void* out, std::span<const size_t> counts) override;
  void ReduceScatterV(const float* in, float* out, std::span<const size_t> counts) override;

  // All of these messages at once, enqueued on `stream`. Those between two members meet in their
  // order, and have equal sizes at both ends, of which 0 may be left out. Can be recorded, where
  // ConnectPairs has been called.
  void Exchange(std::span<const NcclMessage> sends, std::span<const NcclMessage> receives,
                cudaStream_t stream);
  // Opens the connections that Exchange wants, which does not go well with recording. All members
  // together; waits.
  void ConnectPairs();

  NcclWatch& watch() const { return *watch_; }
  // What has gone wrong since, in words; empty: nothing.
  std::string AsyncError() const;
  // Ends its kernels, wherever they are. From then on every call throws Error kPeer.
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
