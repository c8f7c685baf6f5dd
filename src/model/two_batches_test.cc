// Two-batch overlap changes no bit of the outputs of a model, on many layouts.
#include "model/test_layouts.h"

namespace switchyard {
namespace {

void ExpectNoBitChangesInTwoBatches(Case c) {
  SCOPED_TRACE(::testing::Message() << c);
  for (const auto& groups : {ManyTexts(c.dp), Groups(c.dp)}) {
    c.two_batches = false;
    const auto want = Run(c, groups);
    c.two_batches = true;
    EXPECT_EQ(Run(c, groups), want);
  }
}

// Covers prompts, decoding and mixed batches, and splits between two texts or within one. Also
// covers exchanges in several rounds, and groups with one row or none.
TEST(TwoBatchOverlapTest, ChangesNoBit) {
  for (const Case& c : OverlapCases()) ExpectNoBitChangesInTwoBatches(c);
}

}  // namespace
}  // namespace switchyard
