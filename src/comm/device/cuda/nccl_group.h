// A communicator of NCCL.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <exception>
#include <span>
#include <string>

#include "comm/device/collectives.h"
#include "comm/device/cuda/nccl_library.h"

namespace switchyard::cuda {

// Non-blocking: whatever waits for a peer on the host ends by `timeout`, with Error kTimeout or
// kPeer. (Kernels of NCCL have no deadline.) The order of its sums is NCCL's choice, by size.
class NcclGroup : public Collectives {
 public:
  // All members together. `name` is for messages.
  NcclGroup(const NcclLibrary& nccl, const NcclUniqueId& id, int rank, int size, std::string name,
            cudaStream_t stream, std::chrono::milliseconds timeout);
  ~NcclGroup() override;
  NcclGroup(const NcclGroup&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void AllReduceSum(float* data, size_t count) override;
  void AllGatherV(const void* in, void* out, std::span<const size_t> counts) override;
  void ReduceScatterV(const float* in, float* out, std::span<const size_t> counts) override;

 private:
  void Finish(int result, const char* what);
  void Connect();

  const NcclLibrary& nccl_;
  int rank_, size_;
  std::string name_;
  cudaStream_t stream_;
  std::chrono::milliseconds timeout_;
  int exceptions_ = std::uncaught_exceptions();
  NcclHandle* handle_ = nullptr;
};

}  // namespace switchyard::cuda
