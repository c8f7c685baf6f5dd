#include "server/metrics/request_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

#include "server/metrics/page.h"

namespace switchyard::metrics {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

uint64_t CountOf(const Histogram& histogram) {
  const auto buckets = histogram.Read().buckets;
  return std::accumulate(buckets.begin(), buckets.end(), uint64_t{0});
}

class RequestMetricsTest : public ::testing::Test {
 protected:
  // A generation whose output arrives at 1.5 s, 2 s (two tokens) and 3 s, after 1 s in the queue.
  RequestTimes Generate() {
    RequestTimes times{.submitted = start};
    const NewOutput first{
        .tokens = 1, .prompt_tokens = 10, .cached_tokens = 4, .queue_seconds = 1.0};
    metrics.AddOutput(first, start + 1500ms, &times);
    metrics.AddOutput({.tokens = 2, .prompt_tokens = 10}, start + 2s, &times);
    metrics.AddOutput({.tokens = 1, .prompt_tokens = 10}, start + 3s, &times);
    return times;
  }

  const Clock::time_point start{1000s};
  RequestMetrics metrics{512};
};

TEST_F(RequestMetricsTest, MeasuresEachPhaseOfAGeneration) {
  const RequestTimes times = Generate();
  metrics.AddEnd(End::kStop, times, 10, 4, start + 3s);
  EXPECT_DOUBLE_EQ(metrics.first_token.Read().sum, 1.5);
  EXPECT_DOUBLE_EQ(metrics.inter_token.Read().sum, 1.5);
  EXPECT_EQ(CountOf(metrics.inter_token), 3u);  // one for each token after the first
  EXPECT_DOUBLE_EQ(metrics.per_output_token.Read().sum, 0.5);
  EXPECT_DOUBLE_EQ(metrics.latency.Read().sum, 3);
  EXPECT_DOUBLE_EQ(metrics.queue.Read().sum, 1);
  EXPECT_DOUBLE_EQ(metrics.prefill.Read().sum, 0.5);
  EXPECT_DOUBLE_EQ(metrics.decode.Read().sum, 1.5);
  EXPECT_DOUBLE_EQ(metrics.inference.Read().sum, 2);
  EXPECT_EQ(metrics.request_prompt_tokens.Read().sum, 10);
  EXPECT_EQ(metrics.request_tokens.Read().sum, 4);
  EXPECT_EQ(metrics.prompt_tokens(), 10u);
  EXPECT_EQ(metrics.cached_tokens(), 4u);
  EXPECT_EQ(metrics.generation_tokens(), 4u);
  EXPECT_DOUBLE_EQ(metrics.cache_hit_rate(), 0.4);
}

// Aborted generations have no latency sample, because the client determined their length.
TEST_F(RequestMetricsTest, AbortedGenerationsHaveNoLatency) {
  const RequestTimes times = Generate();
  metrics.AddEnd(End::kAbort, times, 10, 4, start + 3s);
  metrics.AddEnd(End::kTimeout, times, 10, 4, start + 3s);
  EXPECT_EQ(CountOf(metrics.latency) + CountOf(metrics.request_tokens), 0u);
  EXPECT_EQ(CountOf(metrics.first_token), 1u);
  EXPECT_EQ(metrics.ended(End::kAbort), 1u);
  EXPECT_EQ(metrics.ended(End::kTimeout), 1u);
}

TEST_F(RequestMetricsTest, AGenerationWithoutTokensHasOnlyALatency) {
  RequestTimes times{.submitted = start};
  metrics.AddOutput({.tokens = 0, .prompt_tokens = 10}, start + 1s, &times);
  metrics.AddEnd(End::kLength, times, 10, 0, start + 1s);
  EXPECT_EQ(CountOf(metrics.latency), 1u);
  EXPECT_EQ(CountOf(metrics.first_token) + CountOf(metrics.decode) + CountOf(metrics.queue), 0u);
}

TEST_F(RequestMetricsTest, OneTokenHasNoTimePerOutputToken) {
  RequestTimes times{.submitted = start};
  metrics.AddOutput({.tokens = 1, .prompt_tokens = 3}, start + 1s, &times);
  metrics.AddEnd(End::kLength, times, 3, 1, start + 1s);
  EXPECT_EQ(CountOf(metrics.per_output_token), 0u);
  EXPECT_EQ(CountOf(metrics.queue), 0u);  // the ranks did not report a queue time
  EXPECT_EQ(CountOf(metrics.decode), 1u);
}

TEST(RecentHitsTest, DropsOldPrompts) {
  RecentHits hits;
  EXPECT_EQ(hits.Rate(), 0);
  for (int i = 0; i < 1000; ++i) hits.Add(10, 0);
  for (int i = 0; i < 500; ++i) hits.Add(10, 10);
  EXPECT_DOUBLE_EQ(hits.Rate(), 0.5);
  for (int i = 0; i < 500; ++i) hits.Add(10, 10);
  EXPECT_DOUBLE_EQ(hits.Rate(), 1);
}

TEST(RecentTokensTest, CountsCompleteSecondsOfTheWindow) {
  const RecentTokens::Time start{1000s};
  RecentTokens tokens;
  for (int second = 0; second < 30; ++second) tokens.Add(5, start + second * 1s);
  EXPECT_DOUBLE_EQ(tokens.PerSecond(start + 29s + 500ms), 5);
  EXPECT_DOUBLE_EQ(tokens.PerSecond(start + 35s), 2.5);
  EXPECT_DOUBLE_EQ(tokens.PerSecond(start + 45s), 0);
}

TEST(BoundsTest, SeriesEndAtTheContext) {
  EXPECT_THAT(OneTwoFive(100), ElementsAre(1, 2, 5, 10, 20, 50, 100));
  EXPECT_THAT(OneTwoFive(40), ElementsAre(1, 2, 5, 10, 20));
}

}  // namespace
}  // namespace switchyard::metrics
