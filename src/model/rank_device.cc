#include "model/rank_device.h"

#include "moe/cpu/cpu_backend.h"

namespace switchyard {
namespace {

class CpuRankDevice : public RankDevice {
 public:
  CpuRankDevice(RankComm& comm, ThreadPool& pool)
      : comm_(comm), pool_(pool), device_(kernels::MakeCpuDevice(pool)), groups_(Groups(comm)) {}
  kernels::Device& device() override { return *device_; }
  const RankGroups& groups() override { return groups_; }
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

MoeShape MoeShapeOf(const ModelConfig& config, int64_t max_tokens) {
  return {.hidden = config.hidden,
          .intermediate = config.moe->intermediate,
          .num_experts = config.moe->router.num_experts,
          .top_k = config.moe->router.top_k,
          .max_tokens = max_tokens,
          .has_shared = config.moe->shared_intermediate > 0,
          .scales_input = config.moe->router.scales_input,
          .zero_experts = config.moe->router.zero_experts};
}

std::unique_ptr<RankDevice> MakeRankDevice(const ModelConfig& config, const ModelOptions& options,
                                           RankComm& comm, ThreadPool& pool) {
  if (options.gpu) return MakeCudaRankDevice(config, options, comm);
  return std::make_unique<CpuRankDevice>(comm, pool);
}

}  // namespace switchyard
