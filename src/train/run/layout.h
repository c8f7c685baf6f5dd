// Parallel layout of a training run, TP, EP, DP and PP, and its communication objects.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "comm/device/symmetric_memory.h"
#include "model/config.h"
#include "train/batch.h"
#include "train/exchange/stage_link.h"
#include "train/gradients.h"
#include "train/layers/decoder_layer.h"
#include "train/run/learner.h"
#include "train/run/trainer.h"

namespace switchyard::train {

// Parallel layout of a training run: TP, EP, DP and PP.

// A pipeline stage has tp · dp ranks and holds a range of the layers. It consists of dp groups with
// different rows; the tp ranks of a group share the work on the same rows. Experts are partitioned
// over all ranks of a stage: each group of ep ranks holds all experts, and tp · dp / ep ranks hold
// copies of the same experts.
struct Layout {
  int tp = 1;  // ranks that partition attention heads, dense widths and the vocabulary
  int ep = 1;  // ranks that partition the experts; divides tp · dp
  int dp = 1;  // groups that process different rows
  int pp = 1;  // stages, each with a range of the layers

  int ranks() const { return tp * dp * pp; }
  int stage_ranks() const { return tp * dp; }
  std::string ToString() const;  // "tp 2, ep 4, dp 2, pp 1"
};

// Error kInvalid, naming the flag, if a size is below 1, ep does not divide tp · dp, or the model
// cannot be partitioned. tp must divide the number of attention heads and of KV heads. No dimension
// may be smaller than the number of ranks that partition it. There must be at least ep experts and
// pp layers.
void CheckLayout(const Layout& layout, const ModelConfig& config);

// The coordinates of a rank. Ranks of a TP group are consecutive, and so are the ranks of a stage:
//
//   tp 2, dp 2, pp 2, ep 2:  rank       0 1 2 3 4 5 6 7
//                            pp         0 0 0 0 1 1 1 1
//                            dp         0 0 1 1 0 0 1 1
//                            tp         0 1 0 1 0 1 0 1
//                            in stage   0 1 2 3 0 1 2 3
//                            ep         0 1 0 1 0 1 0 1     = in stage % ep
//
// Groups list world ranks in ascending order.
struct RankCoordinates {
  Layout layout;
  int rank = 0;
  int tp = 0, dp = 0, pp = 0, ep = 0;
  int in_stage = 0;

  RankCoordinates() = default;
  RankCoordinates(const Layout& layout, int rank);

  int RankOf(int stage, int index_in_stage) const {
    return stage * layout.stage_ranks() + index_in_stage;
  }
  // World ranks that hold the layers before and after those of this rank, for the same rows; -1:
  // none.
  int previous() const { return pp == 0 ? -1 : rank - layout.stage_ranks(); }
  int next() const { return pp + 1 == layout.pp ? -1 : rank + layout.stage_ranks(); }
  std::vector<int> WorldGroup() const;
  std::vector<int> StageGroup() const;
  std::vector<int> TpGroup() const;
  // Ranks with the same shards of the same layers and other rows.
  std::vector<int> CopiesGroup() const;
  std::vector<int> EpGroup() const;            // ranks with different experts
  std::vector<int> ExpertCopiesGroup() const;  // ranks with the same experts
  // The group that sums the gradients of the embedding's copies: the ranks at this rank's position
  // in the first and the last stage. A rank of a middle stage also gets a group, with the rank at
  // its position in the first stage, but does not use it.
  std::vector<int> EmbeddingGroup() const;
  // The layers of this rank's stage. Layers are partitioned evenly; if that leaves a remainder, the
  // first stages have one layer more.
  StageRange Stage(const ModelConfig& config) const;
  std::string Title() const;  // for example "PP1 DP0 TP1 EP1"
};

// A rank's coordinates and the collectives of its groups. Owned by the rank; used by the rank's
// thread only. Collectives for gradients are separate objects, so that they may run in any order
// relative to other collectives.
struct LayoutRanks {
  RankCoordinates place;
  std::shared_ptr<SymmetricMemory> memory;
  std::unique_ptr<Communicator> world, stage, tp;
  std::unique_ptr<Communicator> experts;  // ranks with different experts, for ranks on devices
  // Communicators for the sums of gradients.
  std::unique_ptr<Communicator> stage_sums, copies, expert_copies, embedding;

  // The groups over which gradients are summed. The result borrows this object.
  GradientGroups gradient_groups() const {
    return {stage_sums.get(), copies.get(), expert_copies.get(),
            place.layout.pp > 1 && (place.pp == 0 || place.pp + 1 == place.layout.pp)
                ? embedding.get()
                : nullptr};
  }

  // Arguments of this rank's model, learner and trainer. They borrow this object.
  LayerRanks layer_ranks(const ExpertRanks& experts) const;
  LearnerRanks learner_ranks() const {
    return {.world = world.get(), .stage = stage.get(), .gradients = gradient_groups()};
  }
  TrainerRanks trainer_ranks() const {
    return {.all = world.get(),
            .tp = tp.get(),
            .part = place.dp,
            .parts = place.layout.dp,
            .copies = gradient_groups()};
  }

  // Bytes that an object allocates in each rank's arena.
  static size_t BytesPerRank(const Layout& layout);
  // Called on every rank of the world; the arena's world must be layout.ranks().
  static std::unique_ptr<LayoutRanks> Create(std::shared_ptr<SharedArena> arena,
                                             const Layout& layout, int rank,
                                             SymmetricMemory::Options options = {});
};

// Communication objects that a learner needs in addition to the collectives of its ranks.

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
