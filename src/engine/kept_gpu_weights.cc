#include "engine/kept_gpu_weights.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/phase_times.h"
#include "engine/speculative/options.h"
#include "kernels/gpus.h"

namespace switchyard {
namespace {

constexpr double kGiB = 1 << 30;

// Whether loading a matrix is a copy. A loader that converts would be needed to choose the same
// formats again.
bool IsCopied(const LinearScheme& scheme) {
  return scheme.packing == Packing::kPlain || scheme.packing == Packing::kFp8;
}

bool AreCopied(const QuantizationConfig& quantization) {
  const auto copied = [](const SchemeRule& rule) { return IsCopied(rule.scheme); };
  return !quantization.mxfp4_blocks() && std::ranges::all_of(quantization.rules, copied) &&
         std::ranges::all_of(quantization.chosen, copied) &&
         std::ranges::all_of(quantization.stored,
                             [](const auto& entry) { return IsCopied(entry.second); });
}

// Null if the GPU cannot share memory, or cannot be used at all. In the latter case the load of the
// model reports the error.
std::unique_ptr<DeviceStore> MakeStore(int gpu, const EnginePlan& plan) {
  try {
    std::unique_ptr<DeviceChunks> chunks = MakeDeviceChunks(gpu);
    if (!chunks) return nullptr;
    return std::make_unique<DeviceStore>(std::move(chunks), plan.weight_bytes_per_rank);
  } catch (const Error& error) {
    LOG_WARNING("weights in GPU memory end with the process of a rank: {}", error.what());
    return nullptr;
  }
}

// Fills `store` with the memory of an earlier process. False if there is none.
bool MapKept(DeviceStore& store, uint64_t key, const KeptDescriptors& kept) {
  const std::optional<KeptDescriptors::Kept> found = kept.Get();
  if (!found) return false;
  std::vector<int> fds;
  for (const FileDescriptor& fd : found->descriptors) fds.push_back(fd.get());
  return store.Map(key, found->record, fds);
}

}  // namespace

bool KeepsGpuWeights(const EngineConfig& config, const EnginePlan& plan) {
  return plan.cuda && !plan.host_experts && !HasDraftModel(SourceOf(config.speculative)) &&
         !config.eplb.enable && config.mesh.pp == 1 && !config.disaggregated() &&
         AreCopied(plan.model.quantization);
}

std::unique_ptr<KeptGpuWeights> KeptGpuWeights::Open(const EngineConfig& config,
                                                     const EnginePlan& plan, int rank, uint64_t key,
                                                     KeptDescriptors kept) {
  const int gpu = MakeModelOptions(config, plan, rank).gpu->index;
  PhaseTimes times;
  std::unique_ptr<DeviceStore> store = MakeStore(gpu, plan);
  times.End("CUDA");
  if (!store) return nullptr;
  bool mapped = false;
  try {
    mapped = MapKept(*store, key, kept);
  } catch (const Error& error) {
    LOG_WARNING("the kept weights cannot be mapped, so they are loaded: {}", error.what());
  }
  times.End("mapping");
  if (mapped) {
    LOG_INFO("{:.2f} GiB of weights of the rank's last process are mapped after {}",
             static_cast<double>(store->bytes()) / kGiB, times.Describe());
  } else {
    kept.Clear();
    store.reset();  // may have mapped some chunks
    store = MakeStore(gpu, plan);
    if (!store) return nullptr;
  }
  auto weights =
      std::unique_ptr<KeptGpuWeights>(new KeptGpuWeights(std::move(store), key, std::move(kept)));
  weights->left_ = mapped;
  return weights;
}

void KeptGpuWeights::Keep() {
  if (std::exchange(left_, true)) return;
  try {
    kept_.Put(store_->Record(key_), store_->descriptors());
    LOG_INFO("{:.2f} GiB of weights in {} parts stay on the GPU if this process ends",
             static_cast<double>(store_->bytes()) / kGiB, store_->descriptors().size());
  } catch (const Error& error) {
    LOG_WARNING("the weights end with this process: {}", error.what());
  }
  store_->CloseDescriptors();
}

void KeptGpuWeights::Discard() { kept_.Clear(); }

bool KeptGpuWeights::Usable() { return store_->filled() && store_->Works(); }

}  // namespace switchyard
