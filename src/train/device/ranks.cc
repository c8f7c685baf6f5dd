#include "train/device/ranks.h"

namespace switchyard::train {

std::unique_ptr<DeviceRanks> MakeHostRanks(LayoutRanks& ranks) {
  const Layout& layout = ranks.place.layout;
  if (layout.ranks() == 1) return std::make_unique<DeviceRanks>();
  return std::make_unique<DeviceRanks>(DeviceGroups{
      .all = ranks.stage_sums.get(),
      .experts = layout.ep > 1 ? ranks.experts.get() : nullptr,
      .expert_copies = layout.ep < layout.ranks() ? ranks.expert_copies.get() : nullptr,
      .host = ranks.world.get(),
      .expert_ranks = ranks.place.EpGroup()});
}

RankOps MakePlainRankOps(LayoutRanks& ranks, ThreadPool& pool) {
  return {.ops = MakePlainOps<BF16>(pool), .ranks = MakeHostRanks(ranks)};
}

}  // namespace switchyard::train
