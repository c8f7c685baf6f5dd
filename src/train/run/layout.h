// How the ranks of a training run share the model and its tokens.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "comm/device/symmetric_memory.h"
#include "model/config.h"
#include "train/gradients.h"
#include "train/layers/decoder_layer.h"
#include "train/run/learner.h"
#include "train/run/trainer.h"
#include "train/stage.h"

namespace switchyard::train {

// Sizes of a run. A pipeline stage is tp · dp ranks, all of which see the stage's layers: dp groups
// with rows of their own, in each of them tp ranks that share the rows' work. Over the same ranks,
// both dimensions together, experts are spread: ep of them hold different experts, and
// tp · dp / ep hold the same ones.
struct Layout {
  int tp = 1;  // ranks that share attention heads, dense widths and the vocabulary
  int ep = 1;  // ranks that share the experts; divides tp · dp
  int dp = 1;  // groups that learn from different rows
  int pp = 1;  // stages, each with a run of the layers

  int ranks() const { return tp * dp * pp; }
  int stage_ranks() const { return tp * dp; }
  std::string ToString() const;  // "tp 2, ep 4, dp 2, pp 1"
};

// Error kInvalid, naming the flag, where a size is under 1, ep does not divide tp · dp, or the
// model cannot be cut so: tp divides its attention heads (and KV heads), no dimension is shorter
// than the ranks that share it, experts are at least ep, layers at least pp.
void CheckLayout(const Layout& layout, const ModelConfig& config);

// Where a rank stands. Ranks of a TP group are neighbours, then those of a stage:
//
//   tp 2, dp 2, pp 2, ep 2:  rank       0 1 2 3 4 5 6 7
//                            pp         0 0 0 0 1 1 1 1
//                            dp         0 0 1 1 0 0 1 1
//                            tp         0 1 0 1 0 1 0 1
//                            in stage   0 1 2 3 0 1 2 3
//                            ep         0 1 0 1 0 1 0 1     = in stage % ep
//
// Groups list world ranks in ascending order.
struct RankPlace {
  Layout layout;
  int rank = 0;
  int tp = 0, dp = 0, pp = 0, ep = 0;
  int in_stage = 0;

  RankPlace() = default;
  RankPlace(const Layout& layout, int rank);

  int RankOf(int stage, int place_in_stage) const {
    return stage * layout.stage_ranks() + place_in_stage;
  }
  // World ranks that hold the layers before and after this rank's, of the same rows; -1: none.
  int previous() const { return pp == 0 ? -1 : rank - layout.stage_ranks(); }
  int next() const { return pp + 1 == layout.pp ? -1 : rank + layout.stage_ranks(); }
  std::vector<int> WorldGroup() const;
  std::vector<int> StageGroup() const;
  std::vector<int> TpGroup() const;
  std::vector<int> CopiesGroup() const;        // the same slice of the same layers, other rows
  std::vector<int> EpGroup() const;            // different experts
  std::vector<int> ExpertCopiesGroup() const;  // the same experts
  // This rank's place in the first stage and in the last; [rank 0's place, rank] in between, where
  // nobody uses it.
  std::vector<int> EmbeddingGroup() const;
  // The layers of this rank's stage: even runs, longer ones first.
  StageRange Stage(const ModelConfig& config) const;
  std::string Title() const;  // "PP1 DP0 TP1 EP1"
};

// A rank's place and its groups' collectives. Owned by the rank and used by its thread; the
// collectives of gradients are objects of their own, so that nothing else is in their order.
struct LayoutRanks {
  RankPlace place;
  std::unique_ptr<SymmetricMemory> memory;
  std::unique_ptr<Communicator> world, stage, tp;
  // Of gradients.
  std::unique_ptr<Communicator> stage_sums, copies, expert_copies, embedding;

  // Borrowed from this.
  GradientGroups gradient_groups() const {
    return {stage_sums.get(), copies.get(), expert_copies.get(),
            place.layout.pp > 1 && (place.pp == 0 || place.pp + 1 == place.layout.pp)
                ? embedding.get()
                : nullptr};
  }

  // What model, learner and loop of this rank are made with; all of it borrows this.
  LayerRanks layer_ranks(RowExchange& exchange) const;
  LearnerRanks learner_ranks() const {
    return {.world = world.get(), .stage = stage.get(), .gradients = gradient_groups()};
  }
  TrainerRanks trainer_ranks() const {
    return {.all = world.get(), .tp = tp.get(), .part = place.dp, .parts = place.layout.dp};
  }

  // What this takes of each rank's arena.
  static size_t BytesPerRank(const Layout& layout);
  // On every rank of the world; the arena's world is layout.ranks().
  static std::unique_ptr<LayoutRanks> Create(std::shared_ptr<SharedArena> arena,
                                             const Layout& layout, int rank,
                                             SymmetricMemory::Options options = {});
};

}  // namespace switchyard::train
