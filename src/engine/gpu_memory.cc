#include "engine/gpu_memory.h"

#include <algorithm>
#include <set>

#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
// If the free memory of a GPU is below this fraction of the largest free memory, another process is
// assumed to use the GPU.
constexpr double kMinFreeFraction = 0.9;

std::set<int> Taken(const EngineConfig& config, int ranks_of_host) {
  std::set<int> taken;
  const int ranks = GpuRanksOfHost(config, ranks_of_host);
  for (int r = 0; r < ranks; ++r) taken.insert(config.base_gpu_id + r * config.gpu_id_step);
  return taken;
}

void CheckBalancedMemory(const std::set<int>& taken, const std::vector<GpuInfo>& gpus) {
  const auto less = [&](int a, int b) { return gpus[a].free_bytes < gpus[b].free_bytes; };
  const int least = *std::ranges::min_element(taken, less);
  const int most = *std::ranges::max_element(taken, less);
  if (gpus[least].free_bytes >= kMinFreeFraction * static_cast<double>(gpus[most].free_bytes))
    return;
  throw Error(ErrorKind::kResource,
              fmt::format("GPU {} ({}) has {:.1f} GiB free, GPU {} has {:.1f}: another process "
                          "probably uses GPU {}",
                          least, gpus[least].name, gpus[least].free_bytes / kGiB, most,
                          gpus[most].free_bytes / kGiB, least),
              fmt::format("stop other processes on GPU {}, or choose GPUs with --base-gpu-id and "
                          "--gpu-id-step",
                          least));
}

}  // namespace

bool ChooseGpus(const EngineConfig& config, int ranks_of_host, const std::vector<GpuInfo>& gpus) {
  CHECK(config.base_gpu_id >= 0 && config.gpu_id_step >= 0);
  if (config.device == "cpu" || (config.device == "auto" && gpus.empty())) return false;
  if (gpus.empty())
    throw Invalid("--device {}: {}", config.host_experts() ? config.device : "cuda",
                  "no GPU was found, or this build of switchyard has no CUDA (it is included if "
                  "nvcc is found)");
  const std::set<int> taken = Taken(config, ranks_of_host);
  if (*taken.rbegin() >= static_cast<int>(gpus.size()))
    throw Error(
        ErrorKind::kInvalid,
        fmt::format("the {} ranks of this host use GPU numbers up to {}, but there are {} GPUs",
                    GpuRanksOfHost(config, ranks_of_host), *taken.rbegin(), gpus.size()),
        "lower --tp-size, --base-gpu-id or --gpu-id-step, or use --device cpu");
  CheckBalancedMemory(taken, gpus);
  return true;
}

bool ChooseGpus(const EngineConfig& config, int ranks_of_host) {
  static const std::vector<GpuInfo> kNotAsked;
  return ChooseGpus(config, ranks_of_host, config.device == "cpu" ? kNotAsked : FindGpus());
}

int GpuRanksOfHost(const EngineConfig& config, int ranks_of_host) {
  return config.host_experts() ? std::max(1, ranks_of_host - config.mesh.expert_ranks)
                               : ranks_of_host;
}

GpuInfo SmallestGpu(const EngineConfig& config, int ranks_of_host) {
  const std::vector<GpuInfo>& gpus = FindGpus();
  GpuInfo smallest;
  for (const int i : Taken(config, ranks_of_host))
    if (smallest.name.empty() || gpus[i].free_bytes < smallest.free_bytes) smallest = gpus[i];
  return smallest;
}

}  // namespace switchyard
