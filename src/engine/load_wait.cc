#include "engine/load_wait.h"

#include <fmt/format.h>

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

}  // namespace switchyard
