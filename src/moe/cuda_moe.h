// The MoE backend of ranks on GPUs, for callers without CUDA headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/device/collectives.h"
#include "comm/mesh.h"
#include "core/dtype.h"
#include "moe/backend.h"
#include "moe/options.h"

namespace switchyard {

struct MoeBackends;

namespace kernels {
class Device;
}
namespace cuda {
class HostLink;
class PeerMemory;
}  // namespace cuda

// Placement of ranks on hosts, and the limit of captured passes; the same on all ranks. If the
// world spans hosts, rows are sent over NCCL.
struct DeviceMoeHosts {
  int ranks_per_host = 0;  // 0: one host has all ranks
  // Maximum tokens of a group in a captured pass. The host cannot wait during a captured pass.
  int64_t recorded_tokens = 0;
};

// Dependencies of the backend. All of them outlive it.
struct DeviceMoeContext {
  Mesh mesh;
  RankGroups groups;  // collectives on device memory; groups of one member may be null
  // Null if no rows are exchanged: an EP group of one rank, or --moe-a2a-backend none.
  cuda::PeerMemory* peers = nullptr;
  // With MoeOptions::host_experts: the arena that the GPU shares with the ranks on CPUs. Else null.
  cuda::HostLink* link = nullptr;
  kernels::Device* device = nullptr;  // a GPU
  DeviceMoeHosts hosts;               // if there are several hosts, groups.ep uses NCCL
  // Number of parts of the down projection in single-batch overlap; 0: chosen by size
  // (GpuRunner::DownParts).
  int down_parts = 0;
  // The registries; null: the built-in backends.
  std::shared_ptr<const MoeBackends> backends = nullptr;
};

// Returns the backend of a rank. It allocates peer memory, or symmetric memory of `link`, so all
// ranks call this in the same order; with `link`, ranks on CPUs call MakeCpuMoe. Error kInvalid
// names the flag that requests a feature without GPU support, or says that this build has no CUDA.
std::shared_ptr<MoeBackend> MakeCudaMoe(const MoeOptions& options, const MoeShape& shape,
                                        const DeviceMoeContext& context);
// Bytes of peer memory that MakeCudaMoe allocates per rank. `dtype`: CudaDeviceOptions::dtype.
size_t CudaMoePeerBytes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                        DType dtype, const DeviceMoeHosts& hosts = {},
                        const MoeBackends* backends = nullptr);

}  // namespace switchyard
