#include "plan/search.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "plan/report.h"
#include "plan/test_question.h"

namespace switchyard::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Search, RanksLayoutsThatFitBeforeOthers) {
  const std::vector<Evaluation> all = Search(GpuQuestion("qwen3_30b_a3b", "h200", 8));
  EXPECT_TRUE(all.front().best.has_value());
  for (size_t i = 1; i < all.size(); ++i) {
    EXPECT_LE(all[i].best.has_value(), all[i - 1].best.has_value());
    if (all[i].best) {
      EXPECT_LE(all[i].per_device, all[i - 1].per_device);
    }
  }
}

TEST(Search, DeepSeekFitsEightH200ButNotEightH100) {
  EXPECT_TRUE(Search(GpuQuestion("deepseek_v3", "h200", 8)).front().best.has_value());
  const std::string error = RefusalOf([] { Search(GpuQuestion("deepseek_v3", "h100", 8)); });
  EXPECT_THAT(error, AllOf(HasSubstr("does not fit 8 x h100"), HasSubstr("devices of this size")));
}

TEST(Search, OnNinetySixGpusAnEngineOfDeepSeekTakesTwoNodesOrMore) {
  const std::vector<Evaluation> all = Search(GpuQuestion("deepseek_v3", "h100", 8, 12));
  EXPECT_GT(all.size(), 300u);
  EXPECT_TRUE(all.front().best.has_value());
  for (const Evaluation& e : all) {
    if (e.best) {
      EXPECT_GE(e.layout.mesh.tp, 16) << e.layout.Name();
    }
  }
}

TEST(Search, MemoryOfARankIsThatOfTheEnginesPlan) {
  const Evaluation e =
      Evaluate(GpuQuestion("deepseek_v3", "h200", 8), ParseLayout("tp8-ep8-dp8-deepep"));
  ASSERT_TRUE(e.accepted) << e.refused;
  const RankMemory& memory = e.largest().memory;
  EXPECT_NEAR(memory.weights.total(), static_cast<double>(e.plan.weight_bytes_per_rank), 1);
  EXPECT_LE(e.largest().total(), 0.85 * e.memory_total);
  EXPECT_DOUBLE_EQ(memory.kv_per_token, 61 * 576 * 2);  // MLA's latent in bfloat16
}

TEST(Search, LatentCachesAreStoredOnceWithDpAttention) {
  const Question q = GpuQuestion("deepseek_v3", "h200", 8);
  const Evaluation tp = Evaluate(q, ParseLayout("tp8-ep8"));
  const Evaluation dp = Evaluate(q, ParseLayout("tp8-ep8-dp8-dense1-deepep"));
  ASSERT_TRUE(tp.accepted && dp.accepted) << tp.refused << dp.refused;
  EXPECT_GT(dp.cache_tokens, 4 * tp.cache_tokens);
}

TEST(Search, RefusalsOfTheEngineAreKept) {
  const Question q = GpuQuestion("deepseek_v3", "h100", 8, 12);
  const Evaluation e = Evaluate(q, ParseLayout("tp96-ep96-dp96-dense1-deepep"));
  EXPECT_FALSE(e.accepted);
  EXPECT_THAT(e.refused, HasSubstr("at most 16 GPUs"));
  EXPECT_THAT(Evaluate(q, ParseLayout("tp5")).refused, HasSubstr("cannot be divided"));
}

TEST(Search, ErrorsOfImpossibleLimitsNameReachableOnes) {
  Question q = GpuQuestion("qwen3_30b_a3b", "h200", 1);
  q.load.max_itl = 1e-6;
  EXPECT_THAT(RefusalOf([&] { Search(q); }),
              AllOf(HasSubstr("no layout meets the load"), HasSubstr("the least ITL")));
  q.load.max_itl = 0;
  q.load.rate = 1e6;
  EXPECT_THAT(RefusalOf([&] { Search(q); }), HasSubstr("sustains"));
}

TEST(Search, ALimitOfLatencyTakesSmallerBatches) {
  Question q = GpuQuestion("qwen3_30b_a3b", "h200", 1);
  const Evaluation free = Evaluate(q, ParseLayout("tp1"));
  q.load.max_itl = free.best->itl / 2;
  const Evaluation bound = Evaluate(q, ParseLayout("tp1"));
  ASSERT_TRUE(bound.best.has_value()) << bound.refused;
  EXPECT_LT(bound.best->running, free.best->running);
  EXPECT_LE(bound.best->itl, q.load.max_itl);
}

TEST(Search, MoreRequestsAtOnceGiveMoreThroughputAndLongerSteps) {
  const Evaluation e = Evaluate(GpuQuestion("qwen3_30b_a3b", "h200", 1), ParseLayout("tp1"));
  ASSERT_GT(e.points.size(), 3u);
  for (size_t i = 1; i < e.points.size(); ++i) {
    EXPECT_GT(e.points[i].output_rate, e.points[i - 1].output_rate);
    EXPECT_GE(e.points[i].itl, e.points[i - 1].itl);
  }
}

TEST(Report, HasTheCommandOfTheFirstLayoutAndItsReason) {
  const Question q = GpuQuestion("qwen3_30b_a3b", "h200", 2);
  const std::vector<Evaluation> all = Search(q);
  const std::string text = Report(q, all, 3);
  EXPECT_THAT(text,
              AllOf(HasSubstr(ServeCommand(q, all.front())), HasSubstr("decode is limited by"),
                    HasSubstr("measured on H200"), HasSubstr("before ")));
  EXPECT_THAT(Picture(q, all),
              AllOf(HasSubstr("<svg"), HasSubstr("</svg>"), Not(HasSubstr("nan"))));
  EXPECT_THAT(ReportJson(q, all), HasSubstr("\"layouts\""));
}

TEST(Explain, GivesTheNumbersOfEachQuestion) {
  const Question q = GpuQuestion("deepseek_v3", "h200", 8);
  EXPECT_THAT(Explain(q, ParseLayout("tp8-ep8-dp8-dense1-deepep")),
              AllOf(HasSubstr("How many devices are needed to hold the weights?"),
                    HasSubstr("MLA's latent cache"), HasSubstr("exchanges rows, with deepep"),
                    HasSubstr("Which batch")));
}

}  // namespace
}  // namespace switchyard::plan
