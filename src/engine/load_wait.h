// Progress of loading, and the wait at its end for ranks that take different times.
#pragma once

#include <cstddef>
#include <functional>

#include "comm/device/progress_clock.h"
#include "engine/config.h"
#include "engine/rank_loop.h"

namespace switchyard {

// A rank on a GPU that keeps copies of all experts (--stream-experts) loads for longer than ranks
// on CPUs, by minutes for large models. So does a new rank on a GPU that has lost its memory, while
// the others keep their weights. So a rank waits for another one as long as that one makes
// progress. Used by the rank's thread.
class LoadWait {
 public:
  // Whether ranks take such different times.
  static bool IsNeeded(const EngineConfig& config, const EnginePlan& plan);
  // Bytes that it allocates in a rank's arena; 0 if it is not needed.
  static size_t BytesPerRank(const EngineConfig& config, const EnginePlan& plan);

  // Allocates symmetric memory, so every rank constructs it at the same place.
  explicit LoadWait(SymmetricMemory& memory);

  // This rank has loaded some more weights. Cheap.
  void Advance() { clock_.Advance(); }
  // Returns when all ranks have called it. Error kTimeout names this rank and one that has made no
  // progress for the timeout of the memory. Throws after an abort too.
  void Await();

 private:
  size_t FlagOf(int rank) const;

  SymmetricMemory& memory_;
  ProgressClock clock_;
  const size_t loaded_;  // a cache line for each rank
};

// What a rank does while it loads, for LoadOptions::progress: the leader reports progress, and
// after an abort each rank ends. If ranks keep their weights for the next epoch, they finish
// loading instead, because the next epoch would otherwise load the weights again. `wait`: null if
// the others wait with a fixed deadline. Borrows all but `rank`.
std::function<void(size_t, size_t)> LoadingProgress(int rank, const RankLoopIo& io,
                                                    const SymmetricMemory& memory,
                                                    bool keeps_weights, LoadWait* wait);

}  // namespace switchyard
