// Planned and measured memory of `bench one-batch`.
#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "apps/one_batch.h"
#include "engine/gpu_memory.h"
#include "engine/host_memory.h"
#include "engine/memory_plan.h"
#include "model/model.h"

namespace switchyard::one_batch {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

int GpuOf(const EngineConfig& config, int rank) {
  return config.base_gpu_id + rank * config.gpu_id_step;
}

std::string Compared(double planned, double measured) {
  return fmt::format("{:.1f} / {:.1f}", planned / kMiB, measured / kMiB);
}

}  // namespace

MemoryWatch::MemoryWatch(const EngineConfig& config, const EnginePlan& plan)
    : config_(config), plan_(plan), bytes_(config.mesh.tp) {
  if (!plan.cuda) bytes_[0][kStart] = ResidentBytes();
}

void MemoryWatch::Ended(Stage stage, int rank, Communicator& world) {
  world.Barrier("bench memory");
  if (plan_.OnGpu(config_.mesh, rank)) {
    bytes_[rank][stage] = FreeGpuBytes(GpuOf(config_, rank));
  } else if (!plan_.cuda && rank == 0 && stage != kStart) {
    bytes_[0][stage] = ResidentBytes();
  }
  world.Barrier("bench memory");
}

void MemoryWatch::Report() const { plan_.cuda ? ReportGpus() : ReportHost(); }

// A page of the cache or of a buffer becomes resident when it is first used. So planned and
// resident memory agree only if the cases use the whole cache and all buffers.
void MemoryWatch::ReportHost() const {
  const RankMemory memory = PlanRankMemory(config_, plan_);
  const int ranks = config_.mesh.tp;
  double weights = WeightsOfRanks(config_, plan_, memory, ranks);
  if (!CopiesWeights(config_, plan_))
    weights = std::min(weights, static_cast<double>(WeightBytesPerRank(plan_.model, Mesh())));
  const double caches =
      static_cast<double>(plan_.kv_bytes_per_rank) * (ranks - config_.mesh.expert_ranks);
  const double planned = weights + ranks * (memory.fixed() - memory.weights.total()) + caches;
  fmt::print("memory: planned {:.1f} MiB, resident {:.1f} MiB more than before loading\n",
             planned / kMiB, static_cast<double>(bytes_[0][kSteps] - bytes_[0][kStart]) / kMiB);
}

// The steps allocate logits and scratch by need, so they use less than planned unless a batch has
// the maximum number of logit rows. Captured graphs are not planned.
void MemoryWatch::ReportGpus() const {
  const RankMemory memory = PlanRankMemory(config_, plan_);
  const int ranks = plan_.host_experts ? config_.mesh.tp - config_.mesh.expert_ranks
                                       : config_.mesh.tp;  // those on GPUs
  const int sharing = config_.gpu_id_step == 0 ? ranks : 1;
  const auto cache = static_cast<double>(plan_.kv_bytes_per_rank);
  const double steps = memory.logits + memory.scratch;
  const double loading = memory.fixed() - steps;
  fmt::print("{}\n", DescribeMemory(config_, plan_));
  fmt::print(
      "memory of each GPU in MiB, planned / measured. Measured memory is the change of the GPU's "
      "free memory, which other processes change too\n");
  fmt::print("{:>4} {:>21} {:>21} {:>21} {:>21} {:>7} {:>15}\n", "GPU", "loading", "cache", "steps",
             "sum", "error", "before loading");
  std::set<int> printed;
  for (int rank = 0; rank < ranks; ++rank) {
    const int gpu = GpuOf(config_, rank);
    if (!printed.insert(gpu).second) continue;
    const auto used = [&](Stage from, Stage to) {
      return static_cast<double>(bytes_[rank][from] - bytes_[rank][to]);
    };
    const double planned = sharing * (loading + cache + steps), measured = used(kStart, kSteps);
    const double before = static_cast<double>(FindGpus()[gpu].total_bytes - bytes_[rank][kStart]);
    fmt::print("{:4} {:>21} {:>21} {:>21} {:>21} {:+6.1f}% {:15.1f}\n", gpu,
               Compared(sharing * loading, used(kStart, kLoading)),
               Compared(sharing * cache, used(kLoading, kCache)),
               Compared(sharing * steps, used(kCache, kSteps)), Compared(planned, measured),
               100 * (planned / measured - 1), before / kMiB);
  }
  fmt::print(
      "loading: weights, rows of passes, rope table, exchange buffers. Not planned: NCCL and "
      "mappings of peer memory, about 1.8 GiB with several ranks. steps: logits, scratch and "
      "captured graphs. before loading: CUDA's context, kernels, other processes\n");
}

}  // namespace switchyard::one_batch
