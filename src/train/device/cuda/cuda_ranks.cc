// The groups of a rank on a GPU: collectives on a stream beside that of the operations.
#include <cuda_runtime_api.h>

#include <memory>
#include <utility>
#include <vector>

#include "comm/device/communicator.h"
#include "comm/device/cuda/collectives.h"
#include "comm/device/cuda/nccl_watch.h"
#include "comm/device/cuda/peer_memory.h"
#include "core/cuda/runtime.h"
#include "core/log.h"
#include "kernels/cuda/device/cuda_device.h"
#include "train/device/cuda_ops.h"

namespace switchyard::train {
namespace {

constexpr size_t kAlignment = 4096;  // bytes that alignment may add

size_t PeerBytes(const Layout& layout) {
  size_t bytes = kAlignment;
  for (const int members : {layout.ranks(), layout.ep, layout.ranks() / layout.ep})
    bytes += cuda::CollectiveBytes({}, members);
  return bytes;
}

// All groups share the stream, so all ranks run their collectives in one order.
class CudaRanks final : public DeviceRanks {
 public:
  CudaRanks(kernels::Device& device, LayoutRanks& ranks)
      : device_(cuda::CudaDevice::From(device)),
        comm_(RankComm::In(ranks.memory, DeviceMesh(ranks.place.layout))),
        peers_(std::make_shared<cuda::PeerMemory>(*comm_, PeerBytes(ranks.place.layout),
                                                  ranks.memory->timeout())),
        watch_(std::make_shared<cuda::NcclWatch>(*comm_, ranks.memory->timeout())) {
    const RankCoordinates& place = ranks.place;
    const int all = place.layout.ranks(), ep = place.layout.ep;
    groups_ = {.all = Make(place.WorldGroup(), "all ranks"),
               .host = ranks.world.get(),
               .expert_ranks = place.EpGroup()};
    if (ep == all) {
      groups_.experts = groups_.all;
    } else if (ep > 1) {
      groups_.experts = Make(place.EpGroup(), "experts");
      groups_.expert_copies = Make(place.ExpertCopiesGroup(), "expert copies");
    } else {
      groups_.expert_copies = groups_.all;
    }
    // The device outlives these groups.
    device_.AddCheck([weak = std::weak_ptr<const cuda::PeerMemory>(peers_)] {
      if (const auto peers = weak.lock()) peers->CheckTimeouts();
    });
    device_.SetWait([watch = watch_](cudaEvent_t event) { watch->Wait(event); });
    LOG_INFO("computes on {}", device_.Describe());
  }
  ~CudaRanks() override {
    SetProfiler(nullptr);
    device_.SetWait({});
  }

  void Fork() override { branch_.Fork(device_.stream()); }
  void Join() override {
    const profile::Span wait = Operation(profile::kWait);
    branch_.Join(device_.stream());
  }
  void Mark() override { marked_.Record(branch_.stream()); }
  void JoinMarked() override {
    const profile::Span wait = Operation(profile::kWait);
    cuda::Check(cudaStreamWaitEvent(device_.stream(), marked_.get()), "waiting for messages");
  }
  void SetProfiler(profile::Profiler* profiler) override {
    if (DeviceRanks::profiler() != nullptr) DeviceRanks::profiler()->SetMessages(nullptr);
    DeviceRanks::SetProfiler(profiler);
    timer_.reset();
    if (profiler == nullptr) return;
    timer_ = std::make_unique<cuda::StreamTimer>(device_, branch_.stream());
    profiler->SetMessages(timer_.get());
  }

 private:
  Collectives* Make(std::vector<int> group, const char* name) {
    collectives_.push_back(cuda::MakeCollectives(*comm_, *peers_, std::move(group), name,
                                                 branch_.stream(), {.watch = watch_}));
    return collectives_.back().get();
  }

  cuda::CudaDevice& device_;
  const cuda::Branch branch_{/*urgent=*/true};
  const cuda::Event marked_{cudaEventDisableTiming};
  std::unique_ptr<cuda::StreamTimer> timer_;  // of the messages, for a profiler
  const std::unique_ptr<RankComm> comm_;
  const std::shared_ptr<cuda::PeerMemory> peers_;
  const std::shared_ptr<cuda::NcclWatch> watch_;
  std::vector<std::unique_ptr<Collectives>> collectives_;
};

}  // namespace

std::unique_ptr<DeviceRanks> MakeCudaRanks(kernels::Device& device, LayoutRanks& ranks) {
  if (ranks.place.layout.ranks() == 1) return std::make_unique<DeviceRanks>();
  return std::make_unique<CudaRanks>(device, ranks);
}

RankOps MakeCudaRankOps(int index, LayoutRanks& ranks) {
  RankOps made;
  made.ops = MakeCudaOps(index);
  made.ranks = MakeCudaRanks(made.ops->device(), ranks);
  return made;
}

}  // namespace switchyard::train
