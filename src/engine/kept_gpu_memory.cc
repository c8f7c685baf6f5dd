#include "engine/kept_gpu_memory.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/phase_times.h"
#include "core/wire.h"
#include "engine/speculative/options.h"
#include "kernels/gpus.h"

namespace switchyard {
namespace {

constexpr double kGibibyte = 1 << 30;

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
// model reports the error. `expected`: of DeviceStore.
std::unique_ptr<DeviceStore> MakeStore(int gpu, size_t expected) {
  try {
    std::unique_ptr<DeviceChunks> chunks = MakeDeviceChunks(gpu);
    if (!chunks) return nullptr;
    return std::make_unique<DeviceStore>(std::move(chunks), expected);
  } catch (const Error& error) {
    LOG_WARNING("memory of the GPU ends with the process of a rank: {}", error.what());
    return nullptr;
  }
}

// What a process leaves. The record has the record of the weights, then that of the cache, which
// may be empty; each is preceded by its bytes and the number of its descriptors.
struct KeptPart {
  std::string record;
  std::vector<int> fds;
};

KeptPart KeptPartOf(const DeviceStore& store, uint64_t key) {
  return {store.Record(key), store.descriptors()};
}

std::string JoinParts(std::span<const KeptPart> parts, std::vector<int>* fds) {
  WireWriter writer;
  for (const KeptPart& part : parts) {
    writer.Put(part.record);
    writer.Put(static_cast<uint64_t>(part.fds.size()));
    fds->insert(fds->end(), part.fds.begin(), part.fds.end());
  }
  return writer.Take();
}

// The parts of weights and cache. Error kInvalid if they are malformed.
std::array<KeptPart, 2> SplitParts(const KeptDescriptors::Kept& kept) {
  std::array<KeptPart, 2> parts;
  WireReader reader(kept.record);
  size_t used = 0;
  for (KeptPart& part : parts) {
    part.record = reader.GetString();
    const auto count = reader.Get<uint64_t>();
    if (count > kept.descriptors.size() - used)
      throw Invalid("a record of kept memory is malformed");
    for (uint64_t i = 0; i < count; ++i) part.fds.push_back(kept.descriptors[used++].get());
  }
  return parts;
}

// A store with the memory of `part` if there is any, else a new one. Null as MakeStore.
std::unique_ptr<DeviceStore> OpenStore(int gpu, size_t expected, uint64_t key,
                                       const KeptPart& part) {
  std::unique_ptr<DeviceStore> store = MakeStore(gpu, expected);
  if (!store || part.record.empty()) return store;
  try {
    if (store->Map(key, part.record, part.fds)) return store;
  } catch (const Error& error) {
    LOG_WARNING("kept memory of the GPU cannot be mapped: {}", error.what());
  }
  store.reset();  // may have mapped some chunks
  return MakeStore(gpu, expected);
}

}  // namespace

bool KeepsGpuWeights(const EngineConfig& config, const EnginePlan& plan) {
  return plan.cuda && !plan.host_experts && !HasDraftModel(SourceOf(config.speculative)) &&
         !config.eplb.enable && config.mesh.pp == 1 && !config.disaggregated() &&
         AreCopied(plan.model.quantization);
}

bool KeepsGpuCache(const EngineConfig& config, const EnginePlan& plan) {
  return KeepsGpuWeights(config, plan) && !config.disable_radix_cache && !plan.model.has_states();
}

std::unique_ptr<KeptGpuMemory> KeptGpuMemory::Open(const EngineConfig& config,
                                                   const EnginePlan& plan, int rank, uint64_t key,
                                                   KeptDescriptors kept) {
  const int gpu = MakeModelOptions(config, plan, rank).gpu->index;
  PhaseTimes times;
  if (!MakeStore(gpu, 0)) return nullptr;  // starts CUDA
  times.End("CUDA");
  std::optional<KeptDescriptors::Kept> found;
  std::array<KeptPart, 2> parts;
  try {
    found = kept.Get();
    if (found) parts = SplitParts(*found);
  } catch (const Error& error) {
    LOG_WARNING("the GPU memory of the rank's last process is lost: {}", error.what());
    parts = {};
    kept.Clear();
  }
  std::unique_ptr<DeviceStore> weights = OpenStore(gpu, plan.weight_bytes_per_rank, key, parts[0]);
  if (!weights) return nullptr;
  std::unique_ptr<DeviceStore> cache;
  if (KeepsGpuCache(config, plan)) cache = OpenStore(gpu, plan.kv_bytes_per_rank, key, parts[1]);
  times.End("mapping");
  const bool has_cache = cache && cache->filled();
  if (weights->filled())
    LOG_INFO("{:.2f} GiB of weights{} of the rank's last process are mapped after {}",
             static_cast<double>(weights->bytes()) / kGibibyte,
             has_cache ? fmt::format(" and {:.2f} GiB of cache",
                                     static_cast<double>(cache->bytes()) / kGibibyte)
                       : "",
             times.Describe());
  // What is not mapped is freed before new memory is allocated.
  if (!weights->filled() || (cache && !has_cache)) kept.Clear();
  auto memory = std::unique_ptr<KeptGpuMemory>(
      new KeptGpuMemory(std::move(weights), std::move(cache), key, std::move(kept)));
  memory->left_ = memory->weights_->filled() && (has_cache || !memory->cache_);
  return memory;
}

void KeptGpuMemory::Leave(bool with_cache) {
  std::array<KeptPart, 2> parts = {KeptPartOf(*weights_, key_)};
  if (with_cache) parts[1] = KeptPartOf(*cache_, key_);
  std::vector<int> fds;
  const std::string record = JoinParts(parts, &fds);
  try {
    kept_.Put(record, fds);
  } catch (const Error& error) {
    LOG_WARNING("memory of the GPU ends with this process: {}", error.what());
  }
}

void KeptGpuMemory::Keep() {
  if (cache_) cache_->Finish();
  if (std::exchange(left_, true)) return;
  Leave(cache_ != nullptr);
  LOG_INFO("{:.2f} GiB of weights{} stay on the GPU if this process ends",
           static_cast<double>(weights_->bytes()) / kGibibyte, cache_ ? " and the cache" : "");
}

void KeptGpuMemory::DropCache() { Leave(/*with_cache=*/false); }

void KeptGpuMemory::Discard() noexcept {
  try {
    kept_.Clear();
  } catch (const Error& error) {
    LOG_WARNING("the next process of the rank may map the memory of this one: {}", error.what());
  }
}

bool KeptGpuMemory::Usable() {
  return weights_->filled() && (!cache_ || cache_->filled()) && weights_->Works();
}

}  // namespace switchyard
