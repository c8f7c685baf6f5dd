#include "plan/layout.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "core/error.h"
#include "plan/test_question.h"

namespace switchyard::plan {
namespace {

using ::testing::HasSubstr;

TEST(Layout, NamesReadBack) {
  for (const char* name :
       {"tp1", "tp8-ep8", "tp8-ep4-dp2-deepep",
        "tp16-ep16-dp16-dense1-deepep-low_latency-red16-tbo",
        "tp2-ep2-mooncake-normal-run_masked_mlp-chunk4096", "tp2-pp4-ep2-dp2-chunk512"})
    EXPECT_EQ(ParseLayout(name).Name(), name);
}

TEST(Layout, UnknownPartsAreNamed) {
  for (const char* name : {"tp8-qq2", "tp8-", "8", "tpx", "tp8-ep8x", "tp0", "tp8-pp0", "tp65537",
                           "tp4096-pp4096", "tp4-ep4-red65537", "tp99999999999"}) {
    try {
      ParseLayout(name);
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("layout"));
    }
  }
}

TEST(Layout, FlagsAreThoseThatDifferFromServesDefaults) {
  EXPECT_EQ(FlagsOf(ParseLayout("tp1")), "");
  EXPECT_EQ(FlagsOf(ParseLayout("tp8-ep8-dp8-dense1-deepep-tbo")),
            " --tp-size 8 --ep-size 8 --dp-size 8 --enable-dp-attention --moe-dense-tp-size 1"
            " --moe-a2a-backend deepep --enable-two-batch-overlap");
  EXPECT_EQ(FlagsOf(ParseLayout("tp2-pp3-ep2-chunk512")),
            " --tp-size 2 --pp-size 3 --ep-size 2 --chunked-prefill-size 512");
  EXPECT_EQ(FlagsOf(ParseLayout("tp2-ep2-red4")),
            " --tp-size 2 --ep-size 2 --ep-num-redundant-experts 4 --ep-dispatch-algorithm "
            "balanced");
  // The engine refuses dispatch algorithms with pipeline stages.
  EXPECT_EQ(FlagsOf(ParseLayout("tp2-pp2-ep2-red4")),
            " --tp-size 2 --pp-size 2 --ep-size 2 --ep-num-redundant-experts 4");
}

TEST(Layout, EnumeratedSizesDivideEachOtherAndTheNodes) {
  const Question q = GpuQuestion("qwen3_30b_a3b", "h200", 8, 3);
  const std::vector<Layout> all = EnumerateLayouts(q.cluster, q.model);
  EXPECT_GT(all.size(), 50u);
  for (const Layout& layout : all) {
    const MeshShape& mesh = layout.mesh;
    EXPECT_EQ(mesh.tp % mesh.ep, 0) << layout.Name();
    EXPECT_EQ(mesh.tp % mesh.dp, 0) << layout.Name();
    EXPECT_TRUE(8 % mesh.tp == 0 || mesh.tp % 8 == 0) << layout.Name();
    EXPECT_EQ(24 % mesh.tp, 0) << layout.Name();
    EXPECT_EQ(ParseLayout(layout.Name()).Name(), layout.Name());
  }
}

TEST(Layout, StagesAreEnumeratedOnCpusAndOnRequest) {
  Question q = GpuQuestion("qwen3_30b_a3b", "h200", 8);
  const auto most = [&](int stages) {
    int pp = 0;
    for (const Layout& layout : EnumerateLayouts(q.cluster, q.model, stages))
      pp = std::max(pp, layout.mesh.pp);
    return pp;
  };
  EXPECT_EQ(most(0), 1);
  EXPECT_EQ(most(4), 4);
  EXPECT_TRUE(EnumerateLayouts(q.cluster, q.model, 3).empty());
  q.cluster.cuda = false;
  EXPECT_EQ(most(0), 8);
  q.model.layers.resize(2);
  EXPECT_EQ(most(0), 2);
}

}  // namespace
}  // namespace switchyard::plan
