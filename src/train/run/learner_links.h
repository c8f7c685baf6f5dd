// Communication objects that a learner needs in addition to the collectives of its ranks.
#pragma once

#include <cstddef>
#include <memory>

#include "train/exchange/stage_link.h"
#include "train/run/gradient_sums.h"
#include "train/run/layout.h"
#include "train/run/learner.h"

namespace switchyard::train {

// A rank's link to its neighbors in the pipeline, and the overlapped gradient sums, if enabled.
// Owned by the rank; used by the rank's thread only. Must outlive the learner.
class LearnerLinks {
 public:
  // Collective: allocates in the memory of `ranks`, which is borrowed. `floats`: maximum rows of a
  // micro-batch on this rank, times hidden. `sums`: an arena for early gradient sums only, with
  // `layout.ranks()` ranks and LayoutRanks::BytesPerRank bytes per rank. If `sums` is null,
  // gradients are summed over `ranks` at the end of a step.
  LearnerLinks(LayoutRanks& ranks, size_t floats, SymmetricMemory::Options options = {},
               const std::shared_ptr<SharedArena>& sums = nullptr);
  // Bytes allocated in each rank's arena, in addition to those of `ranks`.
  static size_t BytesPerRank(const Layout& layout, size_t floats);

  LearnerRanks ranks() const;

 private:
  LayoutRanks& ranks_;
  std::unique_ptr<StageLink> link_;          // null: one stage
  std::unique_ptr<LayoutRanks> sums_ranks_;  // over the arena of `sums`; null: no early sums
  std::unique_ptr<GradientSums> sums_;
};

}  // namespace switchyard::train
