#include "plan/worker_split.h"

#include <gmock/gmock.h>

#include "plan/test_question.h"

namespace switchyard::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Question Hosts(int nodes) {
  Question q = CpuQuestion("qwen3_30b_a3b", 4, 256);
  q.cluster.nodes = nodes;
  q.cluster.nics = 1;
  q.cluster.nic_gbit = 10;
  q.load = {.input = 1000, .output = 200};
  return q;
}

TEST(SplitLayout, NamesReadBack) {
  for (const char* name : {"tp1/tp1", "2xtp4-ep4/1xtp8-ep8-dp8-deepep", "3xtp1/tp2"})
    EXPECT_EQ(ParseSplitLayout(name).Name(), name);
  EXPECT_FALSE(IsSplitName("tp8-ep8"));
  for (const char* name : {"tp1", "0xtp1/tp1", "2tp1/tp1", "2x/tp1", "tp1/", "tp1/zz",
                           "4097xtp1/tp1", "tp1/99999999999xtp1"})
    EXPECT_NE(RefusalOf([&] { ParseSplitLayout(name); }), "") << name;
}

TEST(Split, NumbersOfWorkersFollowFromTheirRates) {
  const Question q = Hosts(12);
  const Split s = EvaluateSplit(q, ParseSplitLayout("tp1/tp1"));
  ASSERT_EQ(s.refused, "");
  const int p = s.layout.prefill_workers, d = s.layout.decode_workers;
  EXPECT_LE(s.units(), 12);
  EXPECT_DOUBLE_EQ(s.requests, std::min(p * s.prefill.requests, d * s.decode.requests));
  // No other numbers serve more.
  for (int other = 1; other < 12; ++other)
    EXPECT_LE(std::min(other * s.prefill.requests, (12 - other) * s.decode.requests),
              s.requests * (1 + 1e-9));
  const Split fixed = EvaluateSplit(q, ParseSplitLayout("2xtp1/3xtp1"));
  EXPECT_EQ(fixed.layout.prefill_workers, 2);
  EXPECT_EQ(fixed.layout.decode_workers, 3);
  EXPECT_LE(fixed.requests, s.requests);
  EXPECT_THAT(EvaluateSplit(q, ParseSplitLayout("9xtp1/9xtp1")).refused, HasSubstr("do not fit"));
}

TEST(Split, ARateTakesTheFewestWorkersAndTheSmallestBatch) {
  Question q = Hosts(12);
  const Split most = EvaluateSplit(q, ParseSplitLayout("tp1/tp1"));
  q.load.rate = most.requests / 4;
  const Split s = EvaluateSplit(q, ParseSplitLayout("tp1/tp1"));
  ASSERT_EQ(s.refused, "");
  EXPECT_LT(s.units(), most.units());
  EXPECT_DOUBLE_EQ(s.requests, q.load.rate);
  EXPECT_LE(s.decode.running, most.decode.running);
  EXPECT_GE(s.layout.decode_workers * s.decode.requests, q.load.rate * (1 - 1e-9));
  EXPECT_LE(s.used_prefill, 1 + 1e-9);
  EXPECT_GT(s.ttft, s.prefill.alone);
  q.load.rate = 100 * most.requests;
  EXPECT_THAT(EvaluateSplit(q, ParseSplitLayout("tp1/tp1")).refused, HasSubstr("sustains"));
}

TEST(Split, TheTransferFollowsThePromptByALayer) {
  Question q = Hosts(2);
  const Split s = EvaluateSplit(q, ParseSplitLayout("1xtp1/1xtp1"));
  ASSERT_EQ(s.refused, "");
  const double width = 48 * 2 * 4 * 128;  // keys and values of 4 KV heads in 48 layers
  EXPECT_DOUBLE_EQ(s.kv_bytes, width * SizeOf(s.prefill.evaluation.plan.kv_dtype));
  EXPECT_NEAR(s.transfer, 1000 * s.kv_bytes / (0.85 * 10e9 / 8) + q.table.network.seconds, 1e-9);
  EXPECT_LT(s.transfer, s.prefill.alone);
  EXPECT_NEAR(s.exposed, s.transfer / 48, 1e-9);
  // With two-batch overlap, a layer is sent when both micro-batches have computed it.
  const Split overlapped = EvaluateSplit(GpuQuestion("qwen3_30b_a3b", "h200", 8),
                                         ParseSplitLayout("1xtp2-ep2-dp2-deepep-tbo/1xtp1"));
  ASSERT_EQ(overlapped.refused, "");
  ASSERT_LT(overlapped.transfer, overlapped.prefill.alone);
  EXPECT_NEAR(overlapped.exposed, overlapped.transfer / 48, 1e-9);
  // A slow link limits the rate, and its transfer hides the prompt.
  q.cluster.nic_gbit = 0.01;
  const Split slow = EvaluateSplit(q, ParseSplitLayout("1xtp1/1xtp1"));
  ASSERT_EQ(slow.refused, "");
  EXPECT_NEAR(slow.prefill.requests, 0.85 * 10e6 / 8 / (1000 * s.kv_bytes), 1e-9);
  EXPECT_NEAR(slow.exposed, slow.transfer + slow.prefill.alone / 48 - slow.prefill.alone, 1e-9);
}

TEST(Split, DecodeStepsAreNotDelayedByPrompts) {
  const Question q = Hosts(2);
  const Split s = EvaluateSplit(q, ParseSplitLayout("1xtp1/1xtp1"));
  Question one = q;
  one.cluster.nodes = 1;
  one.load.batch = s.decode.running;
  const Evaluation together = Evaluate(one, ParseLayout("tp1"));
  ASSERT_TRUE(together.best.has_value()) << together.refused;
  EXPECT_LT(s.itl, together.best->itl);
}

TEST(Split, ASearchPrintsTheCommands) {
  const Question q = Hosts(3);
  const std::vector<Split> all = SearchSplits(q, {});
  for (size_t i = 1; i < all.size(); ++i)
    if (all[i].refused.empty()) {
      EXPECT_LE(all[i].requests, all[i - 1].requests);
    }
  const std::string text = SplitReport(q, all, 3);
  EXPECT_THAT(text,
              AllOf(HasSubstr("--host 0.0.0.0 --port 30001 --disaggregation-mode prefill"),
                    HasSubstr("--host 0.0.0.0 --port 30002 --disaggregation-mode decode"),
                    HasSubstr("switchyard route --port 30000 --prefill http://PREFILL1:30001"),
                    HasSubstr("without separate workers"), Not(HasSubstr("nan"))));
  EXPECT_THAT(SplitJson(q, all), HasSubstr("\"transfer_seconds\""));
  EXPECT_THAT(ExplainSplit(q, all.front().layout),
              AllOf(HasSubstr("Does the link carry the cache of the prompts?"),
                    HasSubstr("the engine accepts the workers")));
}

TEST(Split, WorkersOnGpusHaveOneHostEach) {
  Question q = GpuQuestion("qwen3_30b_a3b", "h200", 8);
  const SplitLayout one_host = ParseSplitLayout("tp1/tp2-ep2-dp2-deepep");
  EXPECT_THAT(ExplainSplit(q, one_host), HasSubstr("the engine accepts the workers"));
  EXPECT_THAT(SplitCommands(q, EvaluateSplit(q, one_host)),
              AllOf(HasSubstr("--disaggregation-mode decode"), HasSubstr("switchyard route"),
                    HasSubstr("--base-gpu-id")));
  const std::string text = ExplainSplit(
      GpuQuestion("qwen3_30b_a3b", "h200", 8, 4),
      ParseSplitLayout("1xtp16-ep16-dp16-dense1-deepep/1xtp16-ep16-dp16-dense1-deepep"));
  EXPECT_THAT(text, AllOf(HasSubstr("supported on one host only"), HasSubstr("on paper"),
                          Not(HasSubstr("switchyard route"))));
  q.load.batch = 8;
  EXPECT_THAT(RefusalOf([&] { EvaluateSplit(q, ParseSplitLayout("tp1/tp1")); }),
              HasSubstr("--batch and --disaggregate exclude each other"));
}

TEST(Split, LimitsOfLatencyBindEachKindOfWorker) {
  Question q = GpuQuestion("qwen3_30b_a3b", "h200", 8);
  const Split free = EvaluateSplit(q, ParseSplitLayout("tp1/tp1"));
  q.load.max_itl = free.itl / 2;
  const Split bound = EvaluateSplit(q, ParseSplitLayout("tp1/tp1"));
  ASSERT_EQ(bound.refused, "");
  EXPECT_LE(bound.itl, q.load.max_itl);
  EXPECT_LT(bound.decode.running, free.decode.running);
  q.load.max_itl = 1e-6;
  EXPECT_THAT(EvaluateSplit(q, ParseSplitLayout("tp1/tp1")).refused, HasSubstr("decode worker"));
  q.load.max_itl = 0;
  q.load.max_ttft = 1e-6;
  EXPECT_THAT(EvaluateSplit(q, ParseSplitLayout("tp1/tp1")).refused, HasSubstr("TTFT"));
  EXPECT_THAT(RefusalOf([&] { SearchSplits(q, {}); }), HasSubstr("no pair of prefill and decode"));
}

TEST(Split, WorkersShareNodesAsTheyFit) {
  // Two nodes of 8 GPUs.
  Question q = GpuQuestion("qwen3_30b_a3b", "h200", 8, 2);
  EXPECT_EQ(EvaluateSplit(q, ParseSplitLayout("3xtp4/2xtp2")).refused, "");
  EXPECT_THAT(EvaluateSplit(q, ParseSplitLayout("3xtp4/3xtp2")).refused, HasSubstr("do not fit"));
  EXPECT_EQ(EvaluateSplit(q, ParseSplitLayout("2xtp4/8xtp1")).refused, "");
}

}  // namespace
}  // namespace switchyard::plan
