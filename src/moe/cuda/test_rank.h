// A rank on a GPU, as a thread of a test.
#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "comm/device/cuda/collectives.h"
#include "comm/device/cuda/peer_memory.h"
#include "kernels/cuda/device/cuda_device.h"
#include "moe/cuda/testing.h"

namespace switchyard::cuda {

constexpr std::chrono::milliseconds kRankTimeout{20'000};

// A rank's GPU with its groups. Ranks share GPUs if there are fewer GPUs than ranks.
struct TestRank {
  TestRank(RankComm& comm, DType dtype, const MoeOptions& options, const MoeShape& shape,
           const DeviceMoeHosts& hosts = {}, int down_parts = 0,
           std::shared_ptr<const MoeBackends> backends = nullptr)
      : device(TestDevice(dtype, shape.max_tokens, comm.mesh.rank() % DeviceCount())),
        peers(comm, PeerBytes(comm.mesh, dtype, options, shape, hosts, backends.get()),
              kRankTimeout, hosts.ranks_per_host) {
    CudaDevice& gpu = CudaDevice::From(*device);
    const auto watch = std::make_shared<NcclWatch>(comm, kRankTimeout);
    gpu.AddCheck([this] { peers.CheckTimeouts(); });
    gpu.SetWait([watch](cudaEvent_t event) { watch->Wait(event); });
    const auto make = [&](std::vector<int> group, const char* name) {
      return collectives
          .emplace_back(
              MakeCollectives(comm, peers, std::move(group), name, gpu.stream(), {.watch = watch}))
          .get();
    };
    context.mesh = comm.mesh;
    context.groups.tp = make(comm.mesh.TpGroup(), "tp");
    context.groups.ep = make(comm.mesh.EpGroup(), "ep");
    context.groups.moe_tp = make(comm.mesh.MoeTpGroup(), "moe-tp");
    context.groups.attn_tp = make(comm.mesh.AttnTpGroup(), "attn-tp");
    context.peers = &peers;
    context.device = device.get();
    context.hosts = hosts;
    context.down_parts = down_parts;
    context.backends = std::move(backends);
    backend = MakeCudaMoe(options, shape, context);
  }
  static size_t PeerBytes(const Mesh& mesh, DType dtype, const MoeOptions& options,
                          const MoeShape& shape, const DeviceMoeHosts& hosts,
                          const MoeBackends* backends = nullptr) {
    return CudaMoePeerBytes(options, shape, mesh.shape(), dtype, hosts, backends) +
           4 * CollectiveBytes({}, mesh.world()) + (size_t{1} << 20);
  }

  std::unique_ptr<kernels::Device> device;
  PeerMemory peers;
  std::vector<std::unique_ptr<Collectives>> collectives;
  DeviceMoeContext context;
  std::shared_ptr<MoeBackend> backend;
};

}  // namespace switchyard::cuda
