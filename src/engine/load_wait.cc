#include "engine/load_wait.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "engine/kept_gpu_memory.h"

namespace switchyard {
namespace {

constexpr size_t kFlagLine = 64;

std::vector<int> OthersOf(const SymmetricMemory& memory) {
  std::vector<int> others;
  for (int rank = 0; rank < memory.world(); ++rank)
    if (rank != memory.rank()) others.push_back(rank);
  return others;
}

// Reports each percent once; loaders call it for every tensor.
std::function<void(size_t, size_t)> ThrottledProgress(const RankLoopIo& io) {
  return [&io, sent = std::optional<size_t>()](size_t done, size_t total) mutable {
    if (done == sent) return;
    if (done < total && done - sent.value_or(0) < std::max<size_t>(1, total / 100)) return;
    sent = done;
    io.send(LoadProgress{.done = done, .total = total});
  };
}

}  // namespace

bool LoadWait::IsNeeded(const EngineConfig& config, const EnginePlan& plan) {
  return config.moe.stream_experts != "off" || KeepsGpuWeights(config, plan);
}

size_t LoadWait::BytesPerRank(const EngineConfig& config, const EnginePlan& plan) {
  if (!IsNeeded(config, plan)) return 0;
  constexpr size_t kAlignment = 64;  // of both allocations
  return ProgressClock::BytesPerRank() + kFlagLine * static_cast<size_t>(config.mesh.world()) +
         2 * kAlignment;
}

LoadWait::LoadWait(SymmetricMemory& memory)
    : memory_(memory),
      clock_(memory, {.peers = OthersOf(memory),
                      .followers = {},
                      .describe = [](int rank) { return fmt::format("rank {}", rank); }}),
      loaded_(memory.Allocate(kFlagLine * static_cast<size_t>(memory.world()))) {}

size_t LoadWait::FlagOf(int rank) const { return loaded_ + kFlagLine * static_cast<size_t>(rank); }

void LoadWait::Await() {
  const std::vector<int> others = OthersOf(memory_);
  for (const int rank : others) memory_.Raise(rank, FlagOf(memory_.rank()), 1);
  for (const int rank : others) clock_.Wait(FlagOf(rank), 1, rank, "model loaded");
}

std::function<void(size_t, size_t)> LoadingProgress(int rank, const RankLoopIo& io,
                                                    const SymmetricMemory& memory,
                                                    bool keeps_weights, LoadWait* wait) {
  std::function<void(size_t, size_t)> report;
  if (rank == 0) report = ThrottledProgress(io);
  if (keeps_weights && !wait) return report;
  return [&memory, keeps_weights, wait, report = std::move(report)](size_t done, size_t total) {
    if (!keeps_weights) memory.CheckAborted();
    if (wait) wait->Advance();
    if (report) report(done, total);
  };
}

}  // namespace switchyard
