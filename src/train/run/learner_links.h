// What a learner in a layout needs beside the collectives of its ranks.
#pragma once

#include <cstddef>
#include <memory>

#include "train/exchange/stage_link.h"
#include "train/run/gradient_sums.h"
#include "train/run/layout.h"
#include "train/run/learner.h"

namespace switchyard::train {

// A rank's link to its neighbours in the pipeline, and the sums of gradients under the backward
// pass where there are any. Owned by the rank and used by its thread; outlives the learner.
class LearnerLinks {
 public:
  // Collective: allocates in the memory of `ranks`, which is borrowed. `floats`: the rows of a
  // micro-batch on this rank, at most, times hidden. `sums`: an arena of `layout.ranks()` ranks
  // with LayoutRanks::BytesPerRank each and nothing else in it, over which gradients are summed
  // early; null: they are summed at the end of a step, over `ranks`.
  LearnerLinks(LayoutRanks& ranks, size_t floats, SymmetricMemory::Options options = {},
               const std::shared_ptr<SharedArena>& sums = nullptr);
  // What that takes of each rank's arena, beside that of `ranks`.
  static size_t BytesPerRank(const Layout& layout, size_t floats);

  LearnerRanks ranks() const;

 private:
  LayoutRanks& ranks_;
  std::unique_ptr<StageLink> link_;          // null: one stage
  std::unique_ptr<LayoutRanks> sums_ranks_;  // over the arena of sums; null: not early
  std::unique_ptr<GradientSums> sums_;
};

}  // namespace switchyard::train
