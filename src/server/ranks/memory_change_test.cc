// Planned changes that drain requests, replace weights, and release memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/ranks/test_supervisor.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr MemoryTags kAll = {.weights = true, .kv_cache = true};
constexpr MemoryTags kWeights = {.weights = true};
constexpr MemoryTags kCache = {.kv_cache = true};

class MemoryChangeTest : public SupervisorTest {
 protected:
  explicit MemoryChangeTest(int groups = 1) : SupervisorTest(groups) {}
  void StartServing(bool ranks_free_cache = false) {
    Start({.restarts = true, .ranks_free_cache = ranks_free_cache});
    supervisor->Watch();
  }
  void Begin(PlannedChange change) {
    change.what = "the change";
    outcome = {};
    ASSERT_TRUE(supervisor->Begin(std::move(change),
                                  [this](const ChangeOutcome& o) { outcome.set_value(o); }));
  }
  ChangeOutcome Outcome() {
    auto future = outcome.get_future();
    EXPECT_EQ(future.wait_for(kLong), std::future_status::ready);
    return future.get();
  }
  ChangeOutcome Make(PlannedChange change) {
    Begin(std::move(change));
    return Outcome();
  }
  EngineRequest Request(size_t epoch) {
    const auto messages = Host(epoch).Receive();
    EXPECT_THAT(messages, SizeIs(1));
    return std::get<EngineRequest>(messages.at(0));
  }
  // Receives a ChangeCache in the epoch, and returns CacheChanged.
  void AnswerChange(size_t epoch, bool release, const std::string& error = "") {
    const auto messages = Host(epoch).Receive();
    ASSERT_THAT(messages, SizeIs(1));
    const auto& change = std::get<ChangeCache>(messages.at(0));
    EXPECT_EQ(change.release, release);
    Host(epoch).Send(CacheChanged{.ticket = change.ticket, .error = error});
  }
  size_t HostsSoFar() {
    const std::lock_guard lock(mutex);
    return hosts.size();
  }
  std::shared_ptr<FakeLayout> Layout() { return std::make_shared<FakeLayout>(*this, 1); }

  std::promise<ChangeOutcome> outcome;
};

TEST_F(MemoryChangeTest, OpenRequestsEndOnTheOldRanks) {
  StartServing();
  const uint64_t old = Submit(2);
  EXPECT_EQ(Request(1).id, old);
  front.SetWeightVersion("1");
  std::atomic<bool> switched{false};
  Begin({.layout = Layout(), .beside = true, .drains = true, .on_switched = [&] {
           EXPECT_EQ(front.open(), 0u);
           switched = true;
           front.SetWeightVersion("2");
         }});
  Host(2).Send(RankReady{});
  while (!front.Drained()) {
    Host(1).Send(StepOutputs{{{.id = old, .new_tokens = {11}, .finish = FinishReason::kLength}}});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const ChangeOutcome done = Outcome();
  EXPECT_THAT(done.error, IsEmpty());
  EXPECT_TRUE(switched);
}

TEST_F(MemoryChangeTest, ReleasedWeightsAreLoadedAgain) {
  StartServing();
  ChangeOutcome done = Make({.rounds = {{}}, .drains = true, .memory = kAll});
  EXPECT_THAT(done.error, IsEmpty());
  EXPECT_EQ(done.released, kAll);
  const uint64_t id = Submit(5);  // waits
  Begin({.memory = kWeights, .resumes = true});
  Host(2).Send(RankReady{});
  done = Outcome();
  EXPECT_EQ(done.released, kCache);
  EXPECT_EQ(done.waiting, 1u);
  EXPECT_GT(front.history().paused_for, 0);
  done = Make({.memory = kCache, .resumes = true});
  EXPECT_FALSE(done.released.any());
  EXPECT_EQ(Request(2).id, id);
  EXPECT_EQ(front.history().paused_for, 0);
}

TEST_F(MemoryChangeTest, WithoutTheCacheTheRanksStayPausedAlsoAfterOneEnds) {
  StartServing();
  Begin({.rounds = {{}}, .drains = true, .memory = kCache});
  Host(2).Send(RankReady{});
  EXPECT_EQ(Outcome().released, kCache);
  EXPECT_THAT(retired, ElementsAre(IsEmpty()));
  const uint64_t id = Submit(5);
  Host(2).End("rank 1 was killed", kKilled);
  Host(3).Send(RankReady{});
  EXPECT_FALSE(Make({.memory = kCache, .resumes = true}).released.any());
  EXPECT_EQ(Request(3).id, id);
}

TEST_F(MemoryChangeTest, OnGpusTheRanksStartWhenNothingIsReleased) {
  StartServing(/*ranks_free_cache=*/true);
  Begin({.rounds = {{0, 1}}, .drains = true, .memory = kCache});
  AnswerChange(1, /*release=*/true, "the memory of the cache cannot be released alone");
  EXPECT_EQ(Outcome().released, kCache);  // the ranks have ended
  EXPECT_THAT(retired, IsEmpty());
  EXPECT_EQ(Make({.memory = kWeights}).released, kAll);
  const uint64_t id = Submit(5);  // waits
  EXPECT_EQ(Make({.memory = kWeights, .resumes = true}).released, kCache);
  const auto next = Layout();
  EXPECT_THAT(Make({.layout = next, .drains = true}).error, IsEmpty());
  EXPECT_EQ(HostsSoFar(), 1u);
  next->fails = true;
  const ChangeOutcome failed = Make({.memory = kCache, .resumes = true});
  EXPECT_THAT(failed.error, HasSubstr("no memory"));
  EXPECT_EQ(failed.released, kCache);
  next->fails = false;
  Begin({.memory = kCache, .resumes = true});
  Host(2).Send(RankReady{});
  EXPECT_FALSE(Outcome().released.any());
  EXPECT_EQ(Request(2).id, id);
  EXPECT_EQ(front.history().paused_for, 0);
}

TEST_F(MemoryChangeTest, RanksOnGpusKeepTheirWeightsWithoutTheCache) {
  StartServing(/*ranks_free_cache=*/true);
  Begin({.rounds = {{}}, .drains = true, .memory = kCache});
  AnswerChange(1, /*release=*/true);
  EXPECT_EQ(Outcome().released, kCache);
  EXPECT_GT(front.history().paused_for, 0);
  const uint64_t id = Submit(5);  // waits
  Begin({.memory = kCache, .resumes = true});
  AnswerChange(1, /*release=*/false, "no memory");
  const ChangeOutcome failed = Outcome();
  EXPECT_EQ(failed.error, "no memory");
  EXPECT_EQ(failed.released, kCache);
  Begin({.memory = kCache, .resumes = true});
  AnswerChange(1, /*release=*/false);
  EXPECT_FALSE(Outcome().released.any());
  EXPECT_EQ(Request(1).id, id);
  EXPECT_EQ(HostsSoFar(), 1u);
  EXPECT_THAT(retired, IsEmpty());
}

TEST_F(MemoryChangeTest, RanksOnGpusThatEndWithoutTheCacheStartAtTheResume) {
  StartServing(/*ranks_free_cache=*/true);
  Begin({.rounds = {{}}, .drains = true, .memory = kCache});
  AnswerChange(1, /*release=*/true);
  EXPECT_EQ(Outcome().released, kCache);
  Host(1).End("rank 1 was killed", kKilled);
  while (front.history().deaths == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const uint64_t id = Submit(5);  // waits
  Begin({.memory = kCache, .resumes = true});
  Host(2).Send(RankReady{});
  EXPECT_FALSE(Outcome().released.any());
  EXPECT_EQ(Request(2).id, id);
}

TEST_F(MemoryChangeTest, AnUpdateWithoutTheCacheOnGpusLoadsAtTheResume) {
  StartServing(/*ranks_free_cache=*/true);
  Begin({.rounds = {{}}, .drains = true, .memory = kCache});
  AnswerChange(1, /*release=*/true);
  EXPECT_EQ(Outcome().released, kCache);
  EXPECT_THAT(Make({.layout = Layout(), .drains = true}).error, IsEmpty());
  EXPECT_EQ(HostsSoFar(), 1u);
  Begin({.memory = kCache, .resumes = true});
  Host(2).Send(RankReady{});
  EXPECT_FALSE(Outcome().released.any());
}

TEST_F(MemoryChangeTest, AnUpdateWithoutWeightsLoadsAtTheResume) {
  StartServing();
  Make({.rounds = {{}}, .drains = true, .memory = kAll});
  const auto next = Layout();
  EXPECT_THAT(Make({.layout = next, .drains = true}).error, IsEmpty());
  next->fails = true;
  ChangeOutcome done = Make({.memory = kAll, .resumes = true});
  EXPECT_THAT(done.error, HasSubstr("no memory"));
  EXPECT_EQ(done.released, kAll);
  next->fails = false;
  Begin({.memory = kAll, .resumes = true});
  Host(2).Send(RankReady{});
  EXPECT_FALSE(Outcome().released.any());
}

// Three ranks, each of which is an attention group. One of them loads while the others serve.
class AbsentMemoryTest : public MemoryChangeTest {
 protected:
  AbsentMemoryTest() : MemoryChangeTest(3) {}
  // Begins a release. While requests drain, rank 1 ends. Returns when rank 1 has loaded and the
  // epoch with all ranks, the third one, begins.
  void LoseARankWhileRequestsDrain(MemoryTags tags) {
    StartServing();
    const uint64_t open = Submit(5);
    EXPECT_EQ(Request(1).id, open);
    Begin({.rounds = {{}}, .drains = true, .aborts = true, .memory = tags});
    const auto messages = Host(1).Receive();
    ASSERT_THAT(messages, SizeIs(1));
    EXPECT_EQ(std::get<AbortRequest>(messages[0]).id, open);
    absent = {1};
    Host(1).End("rank 1 was killed", kKilled);
    Host(2).Send(RankReady{});
    while (front.history().epoch < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(front.history().absent, 1);
    absent = {};
    Host(2).absent_have_loaded = true;
    Host(3).Send(RankReady{});
  }
};

TEST_F(AbsentMemoryTest, TheWeightsAreReleasedWhenAllRanksAreBack) {
  LoseARankWhileRequestsDrain(kWeights);
  const ChangeOutcome done = Outcome();
  EXPECT_THAT(done.error, IsEmpty());
  EXPECT_EQ(done.released, kWeights);
  EXPECT_EQ(HostsSoFar(), 3u);
  const uint64_t id = Submit(5);  // waits
  Begin({.memory = kWeights, .resumes = true});
  Host(4).Send(RankReady{});
  EXPECT_FALSE(Outcome().released.any());
  EXPECT_EQ(Request(4).id, id);
  EXPECT_EQ(front.history().absent, 0);
}

TEST_F(AbsentMemoryTest, TheCacheIsReleasedWhenAllRanksAreBack) {
  LoseARankWhileRequestsDrain(kCache);
  Host(4).Send(RankReady{});
  EXPECT_EQ(Outcome().released, kCache);
  const uint64_t id = Submit(5);  // waits
  EXPECT_FALSE(Make({.memory = kCache, .resumes = true}).released.any());
  EXPECT_EQ(Request(4).id, id);
  EXPECT_EQ(HostsSoFar(), 4u);
  EXPECT_EQ(front.history().absent, 0);
}

TEST_F(AbsentMemoryTest, ARankThatEndsWithoutTheCacheReturnsBeforeTheResume) {
  StartServing();
  Begin({.rounds = {{}}, .drains = true, .memory = kCache});
  Host(2).Send(RankReady{});
  EXPECT_EQ(Outcome().released, kCache);
  absent = {1};
  Host(2).End("rank 1 was killed", kKilled);
  Host(3).Send(RankReady{});
  absent = {};
  Host(3).absent_have_loaded = true;
  Host(4).Send(RankReady{});
  EXPECT_FALSE(Make({.memory = kCache, .resumes = true}).released.any());
  EXPECT_EQ(HostsSoFar(), 4u);
  EXPECT_EQ(front.history().absent, 0);
}

}  // namespace
}  // namespace switchyard
