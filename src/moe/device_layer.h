// MoE layers on a GPU, for code that knows nothing of CUDA.
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

// One MoE layer on one rank. The rank's thread calls it.
class MoeBlock {
 public:
  virtual ~MoeBlock() = default;

  // The contract of MoeLayer::Forward, of the device's memory: enqueued on its stream; what is
  // enqueued depends on the counts of `tokens` alone, so that it can be recorded and replayed.
  // Where tokens.routed_experts is not null the choice is kept on the device, and nothing is
  // written there.
  virtual void Forward(const float* hidden, const MoeTokens& tokens, float* out) = 0;
  // What is to be told of each row of `hidden` as it is written, so that it need not be read again;
  // or null. Called on every rank, before it makes the rows of the next Forward.
  virtual const kernels::RowHook* RowsToCome(const MoeTokens&) { return nullptr; }
  // to [tokens, top_k], host memory: the choice that the last pass kept for the group's first
  // `tokens` tokens. Waits for the stream.
  virtual void CopyRoutedExperts(int64_t tokens, int32_t* to) = 0;
};

// What the MoE layers of one rank share: exchanges and working memory. Outlives its layers.
class DeviceMoe {
 public:
  virtual ~DeviceMoe() = default;
  // `weights` as MoeLayer takes them, host memory that may go when this returns.
  virtual std::unique_ptr<MoeBlock> MakeLayer(MoeLayerConfig config,
                                              const MoeLayerWeights& weights) = 0;
};

// Where the ranks are, and what of their work is recorded: rows travel over NCCL where the world
// spans hosts. The same on all ranks.
struct DeviceMoeHosts {
  int ranks_per_host = 0;  // 0: all are on one
  // The most tokens of a group in a pass that is recorded and replayed, where the host cannot wait.
  int64_t recorded_tokens = 0;
};

// What they stand on; all of it outlives them.
struct DeviceMoeContext {
  Mesh mesh;
  RankGroups groups;  // of the device's memory; those with one member may be null
  // Null where no rows are exchanged: one rank of the EP group, or --moe-a2a-backend none.
  cuda::PeerMemory* peers = nullptr;
  kernels::Device* device = nullptr;  // a GPU
  DeviceMoeHosts hosts;               // where there are several, groups.ep goes over NCCL
};

// Allocates peer memory: all ranks, in one order. Error kInvalid names the flag that asks for what
// GPUs do not do yet, or that this build has no CUDA.
std::unique_ptr<DeviceMoe> MakeCudaMoe(const MoeOptions& options, const MoeShape& shape,
                                       const DeviceMoeContext& context);
// Bytes of peer memory that it allocates on each rank. `dtype`: CudaDeviceOptions::dtype.
size_t CudaMoePeerBytes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                        DType dtype, const DeviceMoeHosts& hosts = {});

}  // namespace switchyard
