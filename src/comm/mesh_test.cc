#include "comm/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
}

}  // namespace
}  // namespace switchyard
