// Attention groups of requests.
#include <gmock/gmock.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "server/front/front.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LastMessageLink : public RankLink {
 public:
  void Send(const std::vector<ControlMessage>& messages) override {
    if (!messages.empty()) last = messages.back();
  }
  ControlMessage last;
};

class FrontGroupsTest : public ::testing::Test {
 protected:
  void Begin(int groups, LoadBalanceMethod method, bool keeps_cache = true) {
    front = std::make_unique<Front>(link, *tokenizer,
                                    Front::Limits{.vocab_size = 512,
                                                  .context_length = 64,
                                                  .cache_tokens = 1024,
                                                  .keeps_cache = keeps_cache},
                                    DpController(groups, method));
  }
  // Returns the group that the ranks get.
  std::optional<int32_t> Submit(GenerationSpec spec) {
    last_id = front->Submit(std::move(spec), [](const GenerationEvent&) {});
    const auto& request = std::get<EngineRequest>(link.last);
    EXPECT_EQ(request.id, last_id);
    return request.group;
  }
  void End(uint64_t id) {
    front->OnMessage(
        StepOutputs{{{.id = id, .new_tokens = {1, 2}, .finish = FinishReason::kLength}}});
  }
  // Submits a request that ends at once.
  std::optional<int32_t> Run(std::vector<int32_t> ids, const char* salt = "") {
    GenerationSpec spec;
    spec.input_ids = std::move(ids);
    spec.cache_salt = salt;
    const std::optional<int32_t> group = Submit(std::move(spec));
    End(last_id);
    return group;
  }

  LastMessageLink link;
  std::unique_ptr<Tokenizer> tokenizer =
      Tokenizer::FromFile(SWITCHYARD_TEST_DATA "/fixtures/qwen3_moe/tokenizer.json");
  std::unique_ptr<Front> front;
  uint64_t last_id = 0;
};

TEST_F(FrontGroupsTest, ChoosesTheGroupOfEachRequest) {
  Begin(3, LoadBalanceMethod::kTotalRequests);
  GenerationSpec spec;
  spec.input_ids = {5, 6, 7};
  EXPECT_EQ(Submit(spec), 0);
  const uint64_t first = last_id;
  spec.group = 2;
  EXPECT_EQ(Submit(spec), 2);
  spec.group.reset();
  EXPECT_EQ(Submit(spec), 1);
  EXPECT_THAT(front->open_by_group(), ElementsAre(1, 1, 1));
  End(first);
  EXPECT_THAT(front->open_by_group(), ElementsAre(0, 1, 1));
  EXPECT_EQ(Submit(spec), 0);

  spec.group = 3;
  try {
    front->Check(spec);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("data_parallel_rank is 3"));
  }
}

TEST_F(FrontGroupsTest, RepeatedPromptsGoToTheirGroup) {
  Begin(2, LoadBalanceMethod::kCacheAware);
  const std::vector<int32_t> first = {5, 6, 7, 8}, second = {9, 6, 7, 8};
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Run(first), 0);
    EXPECT_EQ(Run(second), 1);
  }
  EXPECT_EQ(Run({5, 6, 7, 8, 20, 21}), 0);  // continues the first prompt
  EXPECT_EQ(Run(first, "salt"), 1);         // the group with fewer prompts

  bool flushed = false;
  front->FlushCache([&](bool done) { flushed = done; });
  front->OnMessage(FlushResult{.ticket = std::get<FlushCache>(link.last).ticket, .done = true});
  EXPECT_TRUE(flushed);
  EXPECT_EQ(Run(second), 0);
  EXPECT_EQ(Run(first), 1);
}

TEST_F(FrontGroupsTest, PromptsStayInTheirGroupsIfRanksEnd) {
  Begin(2, LoadBalanceMethod::kCacheAware);
  const std::vector<int32_t> first = {5, 6, 7, 8}, second = {9, 6, 7, 8};
  EXPECT_EQ(Run(first), 0);
  EXPECT_EQ(Run(second), 1);
  const auto change = [&](int groups, bool caches_stay) {
    front->PauseForChange(std::chrono::steady_clock::now(), groups, caches_stay);
    front->Resume();
  };
  const auto end = [&] {
    front->Pause({.why = "killed", .time = std::chrono::steady_clock::now()});
    front->Resume();
  };
  change(2, true);
  EXPECT_EQ(Run(second), 1);
  end();
  EXPECT_EQ(Run(second), 1);
  change(2, false);
  EXPECT_EQ(Run(second), 0);
  EXPECT_EQ(Run(first), 1);
  change(3, true);  // the groups are others
  EXPECT_EQ(Run(second), 0);
  EXPECT_EQ(Run(first), 1);

  Begin(2, LoadBalanceMethod::kCacheAware, /*keeps_cache=*/false);
  EXPECT_EQ(Run(first), 0);
  EXPECT_EQ(Run(second), 1);
  end();
  EXPECT_EQ(Run(second), 0);
  EXPECT_EQ(Run(first), 1);
}

}  // namespace
}  // namespace switchyard
