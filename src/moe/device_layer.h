// MoE layers on a GPU, for callers without CUDA headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/device/collectives.h"
#include "comm/mesh.h"
#include "core/dtype.h"
#include "moe/layer.h"
#include "moe/options.h"

namespace switchyard {

namespace kernels {
class Device;
}
namespace cuda {
class PeerMemory;
}

// One MoE layer on one rank. Used by the rank's thread only.
class MoeBlock {
 public:
  virtual ~MoeBlock() = default;

  // As MoeLayer::Forward, on device memory: enqueues work on the device's stream. The enqueued work
  // depends only on the counts in `tokens`, so that it can be captured in a CUDA graph and
  // replayed. If tokens.routed_experts is not null, the selected experts stay on the device:
  // nothing is written to that pointer.
  virtual void Forward(const float* hidden, const MoeTokens& tokens, float* out) = 0;
  // A hook to run on each row of `hidden` as it is written, so that the layer need not read the row
  // again; or null. Called on every rank before it computes the rows of the next Forward.
  virtual const kernels::RowHook* InputRowHook(const MoeTokens&) { return nullptr; }
  // Copies the expert ids that the last pass kept for the group's first `tokens` tokens to host
  // memory, to [tokens, top_k]. Synchronizes with the stream.
  virtual void CopyRoutedExperts(int64_t tokens, int32_t* to) = 0;
};

// Exchanges and workspace shared by the MoE layers of one rank. Outlives its layers.
class DeviceMoe {
 public:
  virtual ~DeviceMoe() = default;
  // `weights` as for MoeLayer, in host memory that may be freed when this returns.
  virtual std::unique_ptr<MoeBlock> MakeLayer(MoeLayerConfig config,
                                              const MoeLayerWeights& weights) = 0;
};

// Placement of ranks on hosts, and the limit of captured passes. Rows travel over NCCL if the world
// spans hosts. The same on all ranks.
struct DeviceMoeHosts {
  int ranks_per_host = 0;  // 0: one host has all ranks
  // Maximum tokens of a group in a captured pass, during which the host cannot wait.
  int64_t recorded_tokens = 0;
};

// Dependencies of DeviceMoe. All of them outlive it.
struct DeviceMoeContext {
  Mesh mesh;
  RankGroups groups;  // collectives on device memory; groups of one member may be null
  // Null where no rows are exchanged: one rank of the EP group, or --moe-a2a-backend none.
  cuda::PeerMemory* peers = nullptr;
  kernels::Device* device = nullptr;  // a GPU
  DeviceMoeHosts hosts;               // with several hosts, groups.ep uses NCCL
};

// Allocates peer memory: all ranks call it in one order. Error kInvalid names the flag that
// requests a feature without GPU support, or states that this build has no CUDA.
std::unique_ptr<DeviceMoe> MakeCudaMoe(const MoeOptions& options, const MoeShape& shape,
                                       const DeviceMoeContext& context);
// Bytes of peer memory that MakeCudaMoe allocates per rank. `dtype`: CudaDeviceOptions::dtype.
size_t CudaMoePeerBytes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                        DType dtype, const DeviceMoeHosts& hosts = {});

}  // namespace switchyard
