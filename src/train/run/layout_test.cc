#include "train/run/layout.h"

#include <gmock/gmock.h>

#include <functional>

#include "core/testing.h"
#include "train/test_training.h"

namespace switchyard::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Layout, EveryRankHasItsPlaceInEveryGroup) {
  for (const Layout& layout :
       {Layout{}, Layout{.tp = 2}, Layout{.tp = 2, .ep = 4, .dp = 2}, Layout{.ep = 2, .dp = 4},
        Layout{.tp = 2, .ep = 2, .dp = 3, .pp = 3}, Layout{.pp = 4}}) {
    SCOPED_TRACE(layout.ToString());
    const std::vector<std::function<std::vector<int>(const RankCoordinates&)>> kinds = {
        &RankCoordinates::WorldGroup, &RankCoordinates::StageGroup,
        &RankCoordinates::TpGroup,    &RankCoordinates::CopiesGroup,
        &RankCoordinates::EpGroup,    &RankCoordinates::ExpertCopiesGroup};
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const RankCoordinates place(layout, rank);
      for (const auto& group : kinds) {
        const std::vector<int> members = group(place);
        EXPECT_TRUE(std::ranges::is_sorted(members));
        EXPECT_THAT(members, ::testing::Contains(rank));
        // All members compute the same group.
        for (const int member : members) EXPECT_EQ(group(RankCoordinates(layout, member)), members);
      }
      EXPECT_THAT(place.EmbeddingGroup(), ::testing::Contains(rank));
      if (place.next() >= 0) {
        EXPECT_EQ(RankCoordinates(layout, place.next()).previous(), rank);
      }
    }
  }
}

TEST(Layout, GroupsOfAnExample) {
  const RankCoordinates place({.tp = 2, .ep = 2, .dp = 2, .pp = 2}, 7);
  EXPECT_EQ(place.Title(), "PP1 DP1 TP1 EP1");
  EXPECT_THAT(place.StageGroup(), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(place.TpGroup(), ElementsAre(6, 7));
  EXPECT_THAT(place.CopiesGroup(), ElementsAre(5, 7));
  EXPECT_THAT(place.EpGroup(), ElementsAre(6, 7));
  EXPECT_THAT(place.ExpertCopiesGroup(), ElementsAre(5, 7));
  EXPECT_THAT(place.EmbeddingGroup(), ElementsAre(3, 7));
  EXPECT_EQ(place.previous(), 3);
  EXPECT_EQ(place.next(), -1);
}

TEST(Layout, StagesShareTheLayers) {
  ModelConfig config = ParseModelConfig(testing::SmallConfig("deepseek_v3"));
  config.layers.resize(5);
  int64_t next = 0;
  for (int stage = 0; stage < 3; ++stage) {
    const StageRange range = RankCoordinates({.pp = 3}, stage).Stage(config);
    EXPECT_EQ(range.first_layer, next);
    EXPECT_EQ(range.first, stage == 0);
    EXPECT_EQ(range.last, stage == 2);
    next = range.last_layer;
  }
  EXPECT_EQ(next, 5);
}

TEST(Layout, RefusesSizesThatDoNotDivide) {
  const auto error = [](const Layout& layout, const char* kind) {
    return ErrorOf([&] { CheckLayout(layout, ParseModelConfig(testing::SmallConfig(kind))); });
  };
  EXPECT_THAT(error({.tp = 0}, "mixtral"), HasSubstr("--tp 0: want 1 or more"));
  EXPECT_THAT(error({.tp = 2, .ep = 3, .dp = 2}, "mixtral"),
              HasSubstr("--ep 3: want a divisor of --tp 2 times --dp 2"));
  EXPECT_THAT(error({.tp = 3}, "deepseek_v3"),
              HasSubstr("--tp 3: does not divide the model's 4 attention heads"));
  EXPECT_THAT(error({.tp = 4}, "mixtral"),
              HasSubstr("--tp 4: does not divide the model's 2 key-value heads"));
  EXPECT_THAT(error({.tp = 2}, "olmoe"), HasSubstr("over all heads together"));
  EXPECT_THAT(error({.pp = 3}, "mixtral"), HasSubstr("--pp 3: exceeds the model's 2 layers"));
  EXPECT_THAT(error({.ep = 8, .dp = 8}, "mixtral"),
              HasSubstr("--ep 8: exceeds the model's 6 experts"));
  EXPECT_EQ(error({.tp = 4, .ep = 8, .dp = 2, .pp = 2}, "deepseek_v3"), "no error");
}

// All-reduces over each group give the sum of the values of its members.
TEST(Layout, RanksAddUpOverTheirGroups) {
  const Layout layout{.tp = 2, .ep = 2, .dp = 2, .pp = 2};
  RunRankThreads(layout.ranks(), LayoutRanks::BytesPerRank(layout) + 4096,
                 [&](int rank, const std::shared_ptr<SharedArena>& arena) {
                   const auto ranks = LayoutRanks::Create(arena, layout, rank);
                   const auto sum = [&](Collectives* group) {
                     if (group == nullptr) return 0.0f;
                     auto value = static_cast<float>(1 << rank);
                     group->AllReduceSum(&value, 1);
                     return value;
                   };
                   const auto of = [](const std::vector<int>& group) {
                     float value = 0.0f;
                     for (const int member : group) value += static_cast<float>(1 << member);
                     return value;
                   };
                   const GradientGroups groups = ranks->gradient_groups();
                   const RankCoordinates& place = ranks->place;
                   EXPECT_EQ(sum(ranks->world.get()), 255.0f);
                   EXPECT_EQ(sum(ranks->stage.get()), of(place.StageGroup()));
                   EXPECT_EQ(sum(ranks->tp.get()), of(place.TpGroup()));
                   EXPECT_EQ(sum(groups.stage), of(place.StageGroup()));
                   EXPECT_EQ(sum(groups.copies), of(place.CopiesGroup()));
                   EXPECT_EQ(sum(groups.expert_copies), of(place.ExpertCopiesGroup()));
                   EXPECT_EQ(sum(groups.embedding), of(place.EmbeddingGroup()));
                 });
}

}  // namespace
}  // namespace switchyard::train
