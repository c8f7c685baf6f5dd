// Two-batch overlap: outputs of the model on many layouts.
#include "model/test_layouts.h"

namespace switchyard {
namespace {

void ExpectNoBitChangesInTwoBatches(Case c) {
  SCOPED_TRACE(testing::Message() << c);
  for (const auto& groups : {ManyTexts(c.dp), Groups(c.dp)}) {
    c.two_batches = false;
    const auto want = Run(c, groups);
    c.two_batches = true;
    EXPECT_EQ(Run(c, groups), want);
  }
}

// Prompts, decoding and mixed batches, split between texts and within one; rounds; groups with one
// row or none.
TEST(TwoBatchOverlapTest, ChangesNoBit) {
  std::vector<Case> cases;
  for (const char* name : {"qwen3_moe", "deepseek_v3", "gpt_oss", "qwen2_moe", "llama"}) {
    cases.push_back({name, 2, 2, "none"});
    cases.push_back({name, 4, 2, "deepep", "auto"});
  }
  for (const auto& [backend, mode] : RowBackends()) {
    cases.push_back({"deepseek_v3", 2, 2, backend, mode});
    cases.push_back({.fixture = "deepseek_v3",
                     .tp = 4,
                     .ep = 4,
                     .backend = backend,
                     .mode = mode,
                     .dtype = DType::kBF16,
                     .dp = 2,
                     .dense_tp = 1});
    cases.push_back({.fixture = "qwen3_moe",
                     .tp = 4,
                     .ep = 2,
                     .backend = backend,
                     .mode = mode,
                     .dp = 4,
                     .round_tokens = 3});
  }
  for (const Case& c : cases) ExpectNoBitChangesInTwoBatches(c);
}

}  // namespace
}  // namespace switchyard
