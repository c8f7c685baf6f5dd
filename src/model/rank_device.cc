#include "model/rank_device.h"

#include <algorithm>
#include <span>

#include "comm/device/message_lane.h"
#include "moe/cpu/cpu_backend.h"

namespace switchyard {
namespace {

class CpuStageRows final : public StageRows {
 public:
  explicit CpuStageRows(MessageLane& lane) : lane_(lane) {}
  void Receive(std::span<float> rows) override { lane_.Receive(std::as_writable_bytes(rows)); }
  void Send(std::span<const float> rows) override { lane_.Send(std::as_bytes(rows)); }

 private:
  MessageLane& lane_;
};

class CpuRankDevice : public RankDevice {
 public:
  CpuRankDevice(RankComm& comm, ThreadPool& pool)
      : comm_(comm), pool_(pool), device_(kernels::MakeCpuDevice(pool)), groups_(Groups(comm)) {}
  kernels::Device& device() override { return *device_; }
  const RankGroups& groups() override { return groups_; }
  std::unique_ptr<StageRows> MakeStageRows(MessageLane& lane) override {
    return std::make_unique<CpuStageRows>(lane);
  }
  std::shared_ptr<MoeBackend> MakeMoe(const ModelOptions& options, const MoeShape& shape) override {
    return MakeCpuMoe(options.moe, shape, comm_, pool_, options.backends);
  }

 private:
  RankComm& comm_;
  ThreadPool& pool_;
  std::unique_ptr<kernels::Device> device_;
  RankGroups groups_;
};

}  // namespace

size_t StageRowBytes(const ModelConfig& config, const ModelOptions& options) {
  return static_cast<size_t>(std::max<int64_t>(1, options.max_tokens) * config.residual_width()) *
         sizeof(float);
}

size_t StageRowsBytes(const ModelConfig& config, const ModelOptions& options,
                      const MeshShape& shape) {
  if (shape.pp == 1 || options.gpu->stage_passes == 0) return 0;
  constexpr size_t kCounters = 4096;  // and alignment
  return static_cast<size_t>(options.gpu->stage_passes) * StageRowBytes(config, options) +
         kCounters;
}

MoeShape MoeShapeOf(const ModelConfig& config, int64_t max_tokens) {
  return {.hidden = config.expert_row_width(),
          .router_width = config.moe->latent > 0 ? config.hidden : 0,
          .intermediate = config.moe->intermediate,
          .num_experts = config.moe->router.num_experts,
          .top_k = config.moe->router.top_k,
          .max_tokens = max_tokens,
          .has_shared = config.moe->shared_intermediate > 0,
          .scales_input = config.moe->router.scales_input,
          .zero_experts = config.moe->router.zero_experts,
          .by_token = config.has_token_routing()};
}

std::unique_ptr<RankDevice> MakeRankDevice(const ModelConfig& config, const ModelOptions& options,
                                           RankComm& comm, ThreadPool& pool) {
  if (options.gpu) return MakeCudaRankDevice(config, options, comm);
  return std::make_unique<CpuRankDevice>(comm, pool);
}

}  // namespace switchyard
