// Single-batch overlap: outputs of the model on many layouts, also together with two-batch overlap.
#include "model/test_layouts.h"

namespace switchyard {
namespace {

void ExpectNoBitChanges(Case c) {
  SCOPED_TRACE(::testing::Message() << c);
  for (const auto& groups : {ManyTexts(c.dp), Groups(c.dp)}) {
    c.single_batch = c.two_batches = false;
    const auto want = Run(c, groups);
    c.single_batch = true;
    EXPECT_EQ(Run(c, groups), want);
    c.two_batches = true;
    EXPECT_EQ(Run(c, groups), want) << "with two-batch overlap";
  }
}

TEST(SingleBatchOverlapTest, ChangesNoBit) {
  for (const Case& c : OverlapCases()) ExpectNoBitChanges(c);
}

// With combine by rank, a partial sum is sent in the part of the combine that contains the last of
// its outputs. The sum does not depend on which part that is.
TEST(SingleBatchOverlapTest, ChangesNoBitOfOutputsThatAreCombinedByRank) {
  for (const char* mode : {"normal", "low_latency"})
    ExpectNoBitChanges({.fixture = "deepseek_v3",
                        .tp = 4,
                        .ep = 4,
                        .backend = "deepep",
                        .mode = mode,
                        .dtype = DType::kBF16,
                        .dp = 2,
                        .dense_tp = 1,
                        .combine_rows = "rank"});
}

}  // namespace
}  // namespace switchyard
