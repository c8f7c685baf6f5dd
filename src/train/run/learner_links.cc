#include "train/run/learner_links.h"

#include "train/gradients.h"

namespace switchyard::train {

LearnerLinks::LearnerLinks(LayoutRanks& ranks, size_t floats, SymmetricMemory::Options options,
                           const std::shared_ptr<SharedArena>& sums)
    : ranks_(ranks) {
  const RankCoordinates& place = ranks.place;
  if (place.layout.pp > 1) {
    link_ = std::make_unique<StageLink>(*ranks.memory, place.previous(), place.next(),
                                        StageLinkOptions{.floats = floats});
  }
  if (sums == nullptr) return;
  sums_ranks_ = LayoutRanks::Create(sums, place.layout, place.rank, options);
  const GradientGroups groups = sums_ranks_->gradient_groups();
  sums_ = std::make_unique<GradientSums>(
      [groups](GradientSums::Parameters parameters) { SumGradients(parameters, groups); }, sums);
}

size_t LearnerLinks::BytesPerRank(const Layout& layout, size_t floats) {
  return layout.pp > 1 ? StageLink::BytesPerRank({.floats = floats}) : 0;
}

LearnerRanks LearnerLinks::ranks() const {
  LearnerRanks ranks = ranks_.learner_ranks();
  ranks.stages = ranks_.place.layout.pp;
  ranks.stage_index = ranks_.place.pp;
  ranks.link = link_.get();
  ranks.early_sums = sums_.get();
  return ranks;
}

}  // namespace switchyard::train
