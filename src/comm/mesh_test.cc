#include "comm/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(MeshTest, GroupsOfTp8Ep4) {
  const MeshShape shape{.tp = 8, .ep = 4};
  const int ep_rank[] = {0, 0, 1, 1, 2, 2, 3, 3};
  for (int rank = 0; rank < 8; ++rank) {
    const Mesh mesh(shape, rank);
    EXPECT_EQ(mesh.world(), 8);
    EXPECT_EQ(mesh.tp_rank(), rank);
    EXPECT_EQ(mesh.ep_rank(), ep_rank[rank]);
    EXPECT_EQ(mesh.moe_tp(), 2);
    EXPECT_EQ(mesh.moe_tp_rank(), rank % 2);
    EXPECT_THAT(mesh.TpGroup(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  }
  EXPECT_THAT(Mesh(shape, 4).EpGroup(), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(Mesh(shape, 5).EpGroup(), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(Mesh(shape, 4).MoeTpGroup(), ElementsAre(4, 5));
  EXPECT_THAT(Mesh(shape, 1).MoeTpGroup(), ElementsAre(0, 1));
  EXPECT_EQ(Mesh(shape, 5).Title(), "TP5 EP2");
}

TEST(MeshTest, EveryRankStandsInItsOwnGroupsAtItsOwnIndex) {
  for (int tp = 1; tp <= 12; ++tp) {
    for (int ep = 1; ep <= tp; ++ep) {
      if (tp % ep != 0) continue;
      for (int rank = 0; rank < tp; ++rank) {
        const Mesh mesh({.tp = tp, .ep = ep}, rank);
        const auto experts = mesh.EpGroup();
        const auto slices = mesh.MoeTpGroup();
        ASSERT_EQ(experts.size(), static_cast<size_t>(ep));
        ASSERT_EQ(slices.size(), static_cast<size_t>(tp / ep));
        EXPECT_EQ(experts[mesh.ep_rank()], rank);
        EXPECT_EQ(slices[mesh.moe_tp_rank()], rank);
        for (const int peer : experts) {
          EXPECT_EQ(Mesh({tp, ep}, peer).moe_tp_rank(), mesh.moe_tp_rank());
        }
        for (const int peer : slices) EXPECT_EQ(Mesh({tp, ep}, peer).ep_rank(), mesh.ep_rank());
      }
    }
  }
}

TEST(MeshTest, AttentionGroupsOfTp8Dp2) {
  const MeshShape shape{.tp = 8, .ep = 4, .dp = 2};
  for (int rank = 0; rank < 8; ++rank) {
    const Mesh mesh(shape, rank);
    EXPECT_EQ(mesh.attn_tp(), 4);
    EXPECT_EQ(mesh.dp_rank(), rank / 4);
    EXPECT_EQ(mesh.attn_tp_rank(), rank % 4);
    EXPECT_EQ(mesh.AttnTpGroup()[mesh.attn_tp_rank()], rank);
  }
  EXPECT_THAT(Mesh(shape, 2).AttnTpGroup(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Mesh(shape, 5).AttnTpGroup(), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(Mesh(shape, 3).Title(), "DP0 TP3 EP1");
  EXPECT_EQ(Mesh(shape, 5).Title(), "DP1 TP5 EP2");
}

TEST(MeshTest, WithoutDpAttentionTheOneGroupIsTheWorld) {
  const Mesh mesh({.tp = 4, .ep = 2}, 3);
  EXPECT_EQ(mesh.dp(), 1);
  EXPECT_EQ(mesh.dp_rank(), 0);
  EXPECT_THAT(mesh.AttnTpGroup(), ElementsAre(0, 1, 2, 3));
}

TEST(MeshTest, DenseFeedForwardsAreSharedByAllOrWholeOnEach) {
  EXPECT_FALSE(Mesh({.tp = 4}, 0).replicated_dense());
  EXPECT_FALSE(Mesh({.tp = 4, .dense_tp = 4}, 0).replicated_dense());
  EXPECT_TRUE(Mesh({.tp = 4, .dense_tp = 1}, 0).replicated_dense());
  EXPECT_TRUE(Mesh({.tp = 1, .dense_tp = 1}, 0).replicated_dense());
}

TEST(MeshTest, GroupsAreWithinAPipelineStage) {
  const MeshShape shape{.tp = 4, .ep = 2, .dp = 2, .pp = 3};
  for (int rank = 0; rank < 12; ++rank) {
    const Mesh mesh(shape, rank);
    EXPECT_EQ(mesh.world(), 12);
    EXPECT_EQ(mesh.rank(), rank);
    EXPECT_EQ(mesh.pp_rank(), rank / 4);
    EXPECT_EQ(mesh.tp_rank(), rank % 4);
    EXPECT_EQ(mesh.first_stage(), rank < 4);
    EXPECT_EQ(mesh.last_stage(), rank >= 8);
    EXPECT_EQ(mesh.World()[rank], rank);
    EXPECT_EQ(mesh.PpGroup()[mesh.pp_rank()], rank);
    EXPECT_EQ(mesh.TpGroup()[mesh.tp_rank()], rank);
    EXPECT_EQ(mesh.EpGroup()[mesh.ep_rank()], rank);
    EXPECT_EQ(mesh.MoeTpGroup()[mesh.moe_tp_rank()], rank);
    EXPECT_EQ(mesh.AttnTpGroup()[mesh.attn_tp_rank()], rank);
    // Within a stage, a rank has the same places as in a world of one stage.
    const Mesh alone({.tp = 4, .ep = 2, .dp = 2}, rank % 4);
    EXPECT_EQ(mesh.ep_rank(), alone.ep_rank());
    EXPECT_EQ(mesh.moe_tp_rank(), alone.moe_tp_rank());
    EXPECT_EQ(mesh.dp_rank(), alone.dp_rank());
    EXPECT_EQ(mesh.attn_tp_rank(), alone.attn_tp_rank());
  }
  EXPECT_THAT(Mesh(shape, 5).PpGroup(), ElementsAre(1, 5, 9));
  EXPECT_THAT(Mesh(shape, 5).TpGroup(), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(Mesh(shape, 5).EpGroup(), ElementsAre(5, 7));
  EXPECT_THAT(Mesh(shape, 5).AttnTpGroup(), ElementsAre(4, 5));
  EXPECT_EQ(Mesh(shape, 5).Title(), "PP1 DP0 TP1 EP0");
}

TEST(MeshTest, AStageIsAWorldOfItsOwn) {
  const MeshShape shape{.tp = 4, .ep = 2, .dp = 2, .pp = 3};
  for (int rank = 0; rank < shape.world(); ++rank) {
    const Mesh mesh(shape, rank), stage = mesh.Stage();
    EXPECT_EQ(stage.world(), 4);
    EXPECT_EQ(stage.rank(), mesh.tp_rank());
    EXPECT_EQ(stage.ep_rank(), mesh.ep_rank());
    EXPECT_EQ(stage.dp_rank(), mesh.dp_rank());
    std::vector<int> group = mesh.EpGroup();
    for (int& member : group) member %= 4;
    EXPECT_EQ(stage.EpGroup(), group);
  }
}

TEST(MeshTest, OneRankAlone) {
  const Mesh mesh;
  EXPECT_EQ(mesh.world(), 1);
  EXPECT_THAT(mesh.EpGroup(), ElementsAre(0));
  EXPECT_THAT(mesh.MoeTpGroup(), ElementsAre(0));
  EXPECT_EQ(mesh.Title(), "TP0 EP0");
}

std::string RefusalOf(const MeshShape& shape) {
  try {
    Mesh(shape, 0);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return error.what();
  }
  return "accepted";
}

TEST(MeshTest, RefusalsNameTheFlags) {
  EXPECT_THAT(RefusalOf({.tp = 0, .ep = 1}), HasSubstr("--tp 0"));
  EXPECT_THAT(RefusalOf({.tp = -2, .ep = 1}), HasSubstr("--tp -2"));
  EXPECT_THAT(RefusalOf({.tp = 2, .ep = 0}), HasSubstr("--ep 0"));
  EXPECT_THAT(RefusalOf({.tp = 4, .ep = 3}), HasSubstr("--ep 3 does not divide --tp 4"));
  EXPECT_THAT(RefusalOf({.tp = 2, .ep = 4}), HasSubstr("--ep 4 does not divide --tp 2"));
  EXPECT_THAT(RefusalOf({.tp = 4, .dp = 3}), HasSubstr("--dp-size 3 does not divide --tp 4"));
  EXPECT_THAT(RefusalOf({.tp = 4, .dp = 0}), HasSubstr("--dp-size 0"));
  EXPECT_THAT(RefusalOf({.tp = 4, .dense_tp = 2}),
              HasSubstr("--moe-dense-tp-size 2: want 1, or 4"));
}

TEST(MeshTest, EveryRankStandsInItsAttentionGroupAtItsOwnIndex) {
  for (int tp = 1; tp <= 12; ++tp) {
    for (int dp = 1; dp <= tp; ++dp) {
      if (tp % dp != 0) continue;
      for (int rank = 0; rank < tp; ++rank) {
        const Mesh mesh({.tp = tp, .dp = dp}, rank);
        const auto group = mesh.AttnTpGroup();
        ASSERT_EQ(group.size(), static_cast<size_t>(tp / dp));
        EXPECT_EQ(group[mesh.attn_tp_rank()], rank);
      }
    }
  }
}

TEST(MeshTest, TheLastRanksMayHaveExpertsOnly) {
  const MeshShape shape{
      .tp = 4, .ep = 4, .dp = 4, .dense_tp = 1, .expert_ranks = 2, .expert_slots = {1, 2, 3, 4}};
  EXPECT_EQ(shape.attention_groups(), 2);
  EXPECT_TRUE(Mesh(shape, 1).attends());
  EXPECT_FALSE(Mesh(shape, 2).attends());
  EXPECT_EQ(Mesh(shape, 1).Title(), "DP1 TP1 EP1");
  EXPECT_EQ(Mesh(shape, 2).Title(), "TP2 EP2 experts");
  EXPECT_TRUE(Mesh().attends());
  EXPECT_EQ(MeshShape().attention_groups(), 1);

  const auto error = [&](auto change) {
    MeshShape other = shape;
    change(other);
    try {
      Mesh(other, 0);
    } catch (const Error& invalid) {
      return std::string(invalid.what());
    }
    return std::string();
  };
  EXPECT_EQ(error([](MeshShape&) {}), "");
  EXPECT_THAT(error([](MeshShape& m) { m.expert_ranks = 4; }), HasSubstr("--expert-ranks 4: want"));
  EXPECT_THAT(error([](MeshShape& m) { m.expert_ranks = -1; }), HasSubstr("--expert-ranks -1"));
  EXPECT_THAT(error([](MeshShape& m) { m.dp = 2; }),
              HasSubstr("--expert-ranks 2: each other rank needs whole attention"));
  EXPECT_THAT(error([](MeshShape& m) { m.dense_tp = 4; }), HasSubstr("--moe-dense-tp-size 1"));
  EXPECT_THAT(error([](MeshShape& m) { m.pp = 2; }), HasSubstr("not supported with --pp-size 2"));
  EXPECT_THAT(error([](MeshShape& m) {
                m.expert_slots = {1, 2};
              }),
              HasSubstr("--expert-slots has 2 numbers; want one for each of 4 EP ranks"));
  EXPECT_THAT(error([](MeshShape& m) { m.expert_slots[1] = 0; }),
              HasSubstr("--expert-slots 0: want at least 1"));
}

}  // namespace
}  // namespace switchyard
