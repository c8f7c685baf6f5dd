// Pooled requests: embeddings and classifications in the engine of one rank.
#include <gmock/gmock.h>

#include "engine/test_rank_engine.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

EngineRequest Pooled(uint64_t id, Ids prompt, Pooling pooling) {
  EngineRequest request = Greedy(id, std::move(prompt), 0);
  request.pooling = pooling;
  return request;
}

// A rank whose model pools. The rows are FakeForward's logits.
class PooledRig : public Rig {
 public:
  explicit PooledRig(Pooling pooling, RankEngine::Options options = Roomy())
      : Rig(std::move(options), 61, /*launches=*/false, pooling), pooling_(pooling) {}

  std::vector<float> Want(const Ids& prompt) const {
    std::vector<double> sum(61);
    const size_t first = pooling_ == Pooling::kLast ? prompt.size() : 1;
    for (size_t length = first; length <= prompt.size(); ++length) {
      const auto row = model.LogitsAfter(std::span(prompt).first(length));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += row[i];
    }
    std::vector<float> mean;
    const auto count = static_cast<double>(prompt.size() - first + 1);
    for (const double x : sum) mean.push_back(static_cast<float>(x / count));
    return mean;
  }

  RequestOutput Pool(uint64_t id, const Ids& prompt) { return Run(Pooled(id, prompt, pooling_)); }

 private:
  const Pooling pooling_;
};

class PooledRequests : public ::testing::TestWithParam<Pooling> {};
INSTANTIATE_TEST_SUITE_P(Kinds, PooledRequests, ::testing::Values(Pooling::kLast, Pooling::kMean));

TEST_P(PooledRequests, ReturnOneVectorAndNoToken) {
  PooledRig rig(GetParam());
  const RequestOutput out = rig.Pool(1, Count(10));
  EXPECT_EQ(out.pooled, rig.Want(Count(10)));
  EXPECT_THAT(out.new_tokens, IsEmpty());
  EXPECT_EQ(out.finish, FinishReason::kLength);
  EXPECT_EQ(out.prompt_tokens, 10);
  EXPECT_EQ(rig.engine.Stats().decode_tokens, 0);
  EXPECT_EQ(rig.model.passes, 1);
}

TEST_P(PooledRequests, ReleaseTheirPagesWithTheLastChunk) {
  RankEngine::Options options = Roomy();
  options.enable_radix_cache = false;
  PooledRig rig(GetParam(), options);
  rig.Tell({Pooled(1, Count(40), GetParam())});
  rig.Step();
  EXPECT_THAT(rig.seen[1].pooled, SizeIs(61));
  EXPECT_FALSE(rig.engine.HasWork());
  EXPECT_EQ(rig.engine.Stats().free_pages, 256);
}

TEST_P(PooledRequests, DependOnNeitherChunksNorBatch) {
  RankEngine::Options options = Roomy();
  options.chunked_prefill_size = 7;
  options.max_logit_rows = 3;  // fewer than the rows of a chunk
  PooledRig rig(GetParam(), options);
  std::vector<ControlMessage> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(Pooled(i + 1, Count(20 + 3 * i, i), GetParam()));
  rig.Tell(std::move(requests));
  rig.RunOut();
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(rig.seen[i + 1].pooled, rig.Want(Count(20 + 3 * i, i))) << i;
  EXPECT_LE(rig.model.most_rows, 7);
}

TEST_P(PooledRequests, ShareAStepWithOthers) {
  PooledRig rig(GetParam());
  rig.Tell({Pooled(1, Count(9), GetParam()), Pooled(2, Count(30, 4), GetParam())});
  rig.Step();
  EXPECT_THAT(rig.seen, SizeIs(2));
  EXPECT_EQ(rig.model.passes, 1);
  rig.RunOut();
}

TEST(PooledRequestsTest, OnlyLastTokenPoolingReusesPrefixes) {
  PooledRig last(Pooling::kLast);
  last.Pool(1, Count(16));
  const RequestOutput again = last.Pool(2, Count(16));
  EXPECT_EQ(again.cached_tokens, 12);
  EXPECT_EQ(again.pooled, last.Want(Count(16)));

  PooledRig mean(Pooling::kMean);
  mean.Pool(1, Count(16));
  const RequestOutput whole = mean.Pool(2, Count(16));
  EXPECT_EQ(whole.cached_tokens, 0);
  EXPECT_EQ(whole.pooled, mean.Want(Count(16)));
}

TEST(PooledRequestsTest, AMeanContinuesAfterAPreemption) {
  RankEngine::Options options = Roomy();
  options.chunked_prefill_size = 8;
  options.max_running_requests = 1;
  options.priorities = true;
  PooledRig rig(Pooling::kMean, options);
  rig.Tell({Pooled(1, Count(40), Pooling::kMean)});
  rig.Step();
  rig.Step();
  EngineRequest urgent = Pooled(2, Count(12, 5), Pooling::kMean);
  urgent.priority = 100;
  rig.Tell({urgent});
  rig.RunOut();
  EXPECT_EQ(rig.engine.Stats().retractions, 1);
  EXPECT_EQ(rig.seen[1].pooled, rig.Want(Count(40)));
  EXPECT_EQ(rig.seen[2].pooled, rig.Want(Count(12, 5)));
}

TEST(PooledRequestsTest, MayFillTheContext) {
  PooledRig rig(Pooling::kLast);
  EXPECT_EQ(rig.Pool(1, Count(512)).pooled, rig.Want(Count(512)));
  EXPECT_THAT(rig.Pool(2, Count(513)).error, HasSubstr("the context holds 512"));
}

TEST(PooledRequestsTest, ModelAndRequestMustAgree) {
  PooledRig pools(Pooling::kLast);
  EXPECT_THAT(pools.Run(Greedy(1, Count(4))).error, HasSubstr("generates no text"));
  Rig writes(Roomy());
  EXPECT_THAT(writes.Run(Pooled(1, Count(4), Pooling::kLast)).error, HasSubstr("generates text"));
}

TEST(PooledRequestsTest, ARowThatIsNotFiniteIsAnError) {
  PooledRig rig(Pooling::kMean);
  rig.model.poison = 3;
  const RequestOutput out = rig.Pool(1, Count(10));
  EXPECT_EQ(out.finish, FinishReason::kError);
  EXPECT_THAT(out.pooled, IsEmpty());
}

}  // namespace
}  // namespace switchyard
