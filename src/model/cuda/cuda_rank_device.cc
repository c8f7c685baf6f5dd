// One rank's GPU: its device, symmetric memory for peer access, and collectives on it.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <utility>

#include "comm/device/cuda/collectives.h"
#include "comm/device/cuda/host_link.h"
#include "comm/device/cuda/row_ring.h"
#include "comm/device/message_lane.h"
#include "core/check.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/log.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/elementwise/sample.h"
#include "model/rank_device.h"
#include "moe/cuda_moe.h"
#include "moe/dispatchers/token_partition.h"

namespace switchyard {
namespace {

DType Precision(const ModelOptions& options) {
  return options.dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
}

kernels::CudaDeviceOptions DeviceOptions(const ModelOptions& options) {
  return {.index = options.gpu->index,
          .dtype = Precision(options),
          .max_tokens = options.max_tokens,
          .max_sequences = std::min(options.gpu->max_sequences, options.max_tokens),
          .max_pages = CeilDiv(options.context_length, options.page_size) + 1,
          .max_branch = options.gpu->max_branch,
          .max_page_tables = options.gpu->max_page_tables,
          .graphs = options.gpu->graphs};
}

cuda::CollectiveOptions CollectivesOf(const ModelOptions& options) {
  return {.custom_all_reduce = options.gpu->custom_all_reduce};
}

DeviceMoeHosts HostsOf(const ModelOptions& options, const MeshShape& shape) {
  const GpuOptions& gpu = *options.gpu;
  const int64_t of_group = gpu.graphs ? gpu.graph_max_tokens : 0;
  // recorded_tokens is per rank: one rank may dispatch the tokens of several attention groups.
  return {.ranks_per_host = gpu.ranks_per_host,
          .recorded_tokens = std::max(of_group, MaxLaneTokens(shape, of_group))};
}

// The names and the members of a rank's groups, the same groups as in RankComm. `mesh`: of the
// stage.
std::vector<std::pair<const char*, std::vector<int>>> GroupsOf(const Mesh& mesh) {
  return {{"tp", mesh.TpGroup()},
          {"ep", mesh.EpGroup()},
          {"moe-tp", mesh.MoeTpGroup()},
          {"attn-tp", mesh.AttnTpGroup()}};
}

// Rows go from GPU to GPU. The lane announces them once the transfer is enqueued, so the host of
// the next stage waits until this stage has launched its pass, and its stream waits for the pass.
class CudaStageRows final : public StageRows {
 public:
  CudaStageRows(MessageLane& lane, cuda::RowRing& ring, cudaStream_t stream)
      : lane_(lane), ring_(ring), stream_(stream) {}

  void Receive(std::span<float> rows) override {
    uint64_t count = 0;
    lane_.Receive(std::as_writable_bytes(std::span(&count, 1)));
    if (count != rows.size())
      throw Error(ErrorKind::kPeer,
                  fmt::format("the previous stage sends {} floats of hidden rows, want {}", count,
                              rows.size()),
                  "all stages of a pipeline must process the same batches");
    ring_.Receive(rows, stream_);
  }
  void Send(std::span<const float> rows) override {
    ring_.Send(rows, stream_);
    const uint64_t count = rows.size();
    lane_.Send(std::as_bytes(std::span(&count, 1)));
  }

 private:
  MessageLane& lane_;
  cuda::RowRing& ring_;
  const cudaStream_t stream_;
};

// The ranks whose GPUs map each other's memory: those of the stage. With experts on CPUs, the ranks
// of the attention group, because the others have no GPU.
Communicator& PeersOf(RankComm& comm, const ModelOptions& options) {
  return options.moe.host_experts ? *comm.attn_tp : *comm.tp;
}

// The groups of a rank are within its stage, so all but the ring see the stage as the world.
class CudaRankDevice : public RankDevice {
 public:
  CudaRankDevice(const ModelConfig& config, const ModelOptions& options, RankComm& comm)
      : mesh_(comm.mesh.Stage()),
        device_(kernels::MakeCudaDevice(DeviceOptions(options))),
        cuda_(cuda::CudaDevice::From(*device_)),
        peers_(comm, PeersOf(comm, options), CudaPeerBytes(config, options, comm.mesh.shape()),
               options.gpu->timeout, options.gpu->ranks_per_host),
        watch_(std::make_shared<cuda::NcclWatch>(comm, options.gpu->timeout)),
        hosts_(HostsOf(options, comm.mesh.shape())) {
    if (options.moe.host_experts) {
      JoinHosts(comm, options);
    } else {
      MakeGroups(comm, options);
    }
    groups_ = {.tp = collectives_[0].get(),
               .ep = collectives_[1].get(),
               .moe_tp = collectives_[2].get(),
               .attn_tp = collectives_[3].get()};
    cuda_.AddCheck([this] { peers_.CheckTimeouts(); });
    if (comm.mesh.pp() > 1 && options.gpu->stage_passes > 0) {
      ring_.emplace(comm, StageRowBytes(config, options), options.gpu->stage_passes,
                    options.gpu->timeout);
      cuda_.AddCheck([this] { ring_->CheckTimeouts(); });
    }
    if (!link_) {
      cuda_.SetWait([this](cudaEvent_t event) { watch_->Wait(event); });
      watch_->BeforeAbort([this] { cuda_.ClearGraphs(); });
    }
    LOG_INFO("computes on {}", device_->Describe());
  }

  // NCCL communicators must outlive the graphs that use them.
  ~CudaRankDevice() override { cuda_.ClearGraphs(); }

  kernels::Device& device() override { return *device_; }
  const RankGroups& groups() override { return groups_; }
  bool samples() const override { return true; }
  void Sample(const kernels::SampleParams& p) override {
    cuda::Check(cuda::SampleTokens(p, cuda_.stream()), "drawing of tokens");
  }
  void SelectBestTokens(const kernels::BestTokensParams& p) override {
    cuda::Check(cuda::SelectBestTokens(p, cuda_.stream()), "selection of the best tokens");
  }
  std::unique_ptr<StageRows> MakeStageRows(MessageLane& lane) override {
    CHECK(ring_.has_value());
    return std::make_unique<CudaStageRows>(lane, *ring_, cuda_.stream());
  }
  std::shared_ptr<MoeBackend> MakeMoe(const ModelOptions& options, const MoeShape& shape) override {
    return MakeCudaMoe(options.moe, shape,
                       {.mesh = mesh_,
                        .groups = groups_,
                        .peers = ScattersTokens(options.moe, mesh_.shape()) ? &peers_ : nullptr,
                        .link = link_ ? &*link_ : nullptr,
                        .device = device_.get(),
                        .hosts = hosts_,
                        .backends = options.backends});
  }
  void EndWaits() noexcept override {
    try {
      watch_->AbortAll();
    } catch (const std::exception& error) {
      LOG_DEBUG("NCCL is not aborted: {}", error.what());
    }
  }

 private:
  void MakeGroups(RankComm& comm, const ModelOptions& options) {
    cuda::CollectiveOptions collectives = CollectivesOf(options);
    collectives.watch = watch_;
    cuda::SharedNccl shared;  // all groups use one stream
    collectives.shared = &shared;
    for (auto [name, group] : GroupsOf(mesh_))
      collectives_.push_back(
          cuda::MakeCollectives(comm, peers_, std::move(group), name, cuda_.stream(), collectives));
  }
  // Each GPU has whole attention, dense layers and head, so its collectives have one member. Rows
  // for experts on CPUs go through the arena.
  void JoinHosts(RankComm& comm, const ModelOptions& options) {
    CHECK_EQ(peers_.world(), 1);
    const std::vector<int> alone = {0};
    for (size_t i = 0; i < GroupsOf(mesh_).size(); ++i)
      collectives_.push_back(
          std::make_unique<cuda::PeerCollectives>(peers_, alone, cuda_.stream()));
    link_.emplace(*comm.memory, options.gpu->timeout);
    cuda_.AddCheck([this] { link_->CheckTimeouts(); });
    cuda_.SetWait([this](cudaEvent_t event) { link_->Wait(event); });
    LOG_INFO(
        "ranks {} to {} compute experts on CPUs; an output depends, within rounding errors, on the "
        "device of its experts",
        mesh_.shape().token_ranks(), mesh_.tp() - 1);
  }

  const Mesh mesh_;  // of the stage
  std::unique_ptr<kernels::Device> device_;
  cuda::CudaDevice& cuda_;
  cuda::PeerMemory peers_;
  std::optional<cuda::RowRing> ring_;   // with several stages
  std::optional<cuda::HostLink> link_;  // with experts on CPUs
  const std::shared_ptr<cuda::NcclWatch> watch_;
  const DeviceMoeHosts hosts_;
  std::vector<std::unique_ptr<Collectives>> collectives_;
  RankGroups groups_;
};

}  // namespace

std::unique_ptr<RankDevice> MakeCudaRankDevice(const ModelConfig& config,
                                               const ModelOptions& options, RankComm& comm) {
  return std::make_unique<CudaRankDevice>(config, options, comm);
}

size_t CudaPeerBytes(const ModelConfig& config, const ModelOptions& options,
                     const MeshShape& shape) {
  constexpr size_t kSlack = 4096;  // bytes that alignment may add
  const Mesh mesh(shape, 0);
  size_t bytes = kSlack;
  if (options.moe.host_experts) return bytes;  // rows go through the arena
  for (const auto& [name, group] : GroupsOf(mesh))
    bytes += cuda::CollectiveBytes(CollectivesOf(options), static_cast<int>(group.size()));
  if (config.has_moe())
    bytes += CudaMoePeerBytes(options.moe, MoeShapeOf(config, options.max_pass_tokens), shape,
                              Precision(options), HostsOf(options, shape), options.backends.get());
  return bytes;
}

}  // namespace switchyard
