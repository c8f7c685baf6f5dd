#include "route/policy.h"

#include <gmock/gmock.h>

#include <array>
#include <map>
#include <vector>

#include "core/error.h"
#include "route/worker_set.h"

namespace switchyard::route {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<Candidate> Equal(int64_t count) {
  std::vector<Candidate> candidates;
  for (int64_t i = 0; i < count; ++i) candidates.push_back({.worker = i, .open = 0});
  return candidates;
}

TEST(PolicyTest, RoundRobinSkipsMissingWorkers) {
  const auto policy = MakePolicy("round_robin", {}, 0);
  const std::vector<Candidate> all = Equal(3);
  std::vector<int64_t> chosen(4);
  for (int64_t& worker : chosen) worker = policy->Choose(all, "");
  EXPECT_THAT(chosen, ElementsAre(0, 1, 2, 0));
  const std::vector<Candidate> without = {{.worker = 0, .open = 0}, {.worker = 2, .open = 0}};
  EXPECT_EQ(policy->Choose(without, ""), 2);
  EXPECT_EQ(policy->Choose(all, ""), 0);
}

TEST(PolicyTest, PowerOfTwoNeverTakesTheMostLoaded) {
  const auto policy = MakePolicy("power_of_two", {}, 3);
  std::vector<Candidate> candidates = Equal(4);
  candidates[2].open = 9;
  std::map<int64_t, int> counts;
  for (int i = 0; i < 300; ++i) ++counts[policy->Choose(candidates, "")];
  EXPECT_EQ(counts.count(2), 0u);
  EXPECT_EQ(counts.size(), 3u);
  EXPECT_EQ(policy->Choose(std::span(candidates).subspan(2, 1), ""), 2);
}

TEST(PolicyTest, RandomTakesAll) {
  const auto policy = MakePolicy("random", {}, 3);
  std::map<int64_t, int> counts;
  for (int i = 0; i < 300; ++i) ++counts[policy->Choose(Equal(3), "")];
  EXPECT_EQ(counts.size(), 3u);
}

TEST(PolicyTest, CacheAwareKeepsAConversationAtItsWorker) {
  const auto policy = MakePolicy("cache_aware", {}, 0);
  const std::vector<Candidate> all = Equal(3);
  std::map<std::string, int64_t> workers;
  for (const char* user : {"anna asks a question", "bert asks another one", "carl says something"})
    workers[user] = policy->Choose(all, user);
  // New conversations go to the workers with the smallest trees.
  EXPECT_THAT((std::vector{workers.begin()->second, std::next(workers.begin())->second,
                           std::next(workers.begin(), 2)->second}),
              ::testing::UnorderedElementsAre(0, 1, 2));
  for (auto& [text, worker] : workers)
    EXPECT_EQ(policy->Choose(all, text + ", and gets an answer"), worker);
  // A worker that was restarted has lost its cache.
  const int64_t first = workers["anna asks a question"];
  policy->Forget(first);
  std::vector<Candidate> others;
  for (const Candidate& c : all)
    if (c.worker != first) others.push_back(c);
  EXPECT_NE(policy->Choose(others, "anna asks a question"), first);
}

TEST(PolicyTest, CacheAwareBalancesTheLoad) {
  const auto policy =
      MakePolicy("cache_aware", {.balance_abs_threshold = 4, .balance_rel_threshold = 1.5}, 0);
  std::vector<Candidate> candidates = Equal(2);
  const int64_t first = policy->Choose(candidates, "a long prompt");
  candidates[first].open = 4;
  EXPECT_EQ(policy->Choose(candidates, "a long prompt"), first);
  candidates[first].open = 5;
  EXPECT_NE(policy->Choose(candidates, "a long prompt"), first);
}

TEST(PolicyTest, AnUnknownNameIsAnError) {
  try {
    MakePolicy("best", {}, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--policy best"));
    EXPECT_THAT(error.what(), HasSubstr("power_of_two"));
  }
}

TEST(PromptKeyTest, AConversationExtendsItsKey) {
  const std::string first =
      R"({"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": true})";
  const std::string second =
      R"({"temperature": 0, "messages": [{"role": "user", "content": "Hello"},
      {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Bye"}], "model": "m"})";
  EXPECT_FALSE(ReadPrompt(first).key.empty());
  EXPECT_THAT(ReadPrompt(second).key, StartsWith(ReadPrompt(first).key));
}

TEST(PromptKeyTest, ReadsAllKindsOfPrompts) {
  EXPECT_EQ(ReadPrompt(R"({"prompt": "abc"})").key, "abc");
  EXPECT_EQ(ReadPrompt(R"({"prompt": ["abc", "d"]})").key, "abc");
  EXPECT_EQ(ReadPrompt(R"({"text": "abc", "model": "m"})").key, "m\nabc");
  EXPECT_EQ(ReadPrompt(R"({"input_ids": [1, 258]})").key, std::string("\1\0\0\0\2\1\0\0", 8));
  EXPECT_EQ(ReadPrompt(R"({"input_ids": [[1], [2]]})").key, std::string("\1\0\0\0", 4));
  EXPECT_NE(ReadPrompt(R"({"input": "abc", "instructions": "x"})").key,
            ReadPrompt(R"({"input": "abc", "instructions": "y"})").key);
  for (const char* other : {"", "[]", "{", "7", R"({"model": "m"})", R"({"prompt": 7})",
                            R"({"messages": []})", R"({"input_ids": [[]]})"})
    EXPECT_EQ(ReadPrompt(other).key, "") << other;
  EXPECT_EQ(ReadPrompt("{\"prompt\": \"" + std::string(1 << 20, 'x') + "\"}").key.size(),
            kMaxPromptKey);
  EXPECT_TRUE(ReadPrompt(R"({"previous_response_id": "resp_1"})").names_stored_response);
  EXPECT_FALSE(ReadPrompt(R"({"previous_response_id": null})").names_stored_response);
}

TEST(WorkerUrlTest, IsNormalized) {
  EXPECT_EQ(ParseWorkerUrl("http://host:30001/").text, "http://host:30001");
  EXPECT_EQ(ParseWorkerUrl("host:30001").text, "http://host:30001");
  EXPECT_EQ(ParseWorkerUrl("http://host/api/").text, "http://host:80/api");
  const WorkerUrl url = ParseWorkerUrl("http://[::1]:7/x");
  EXPECT_EQ(url.host, "::1");
  EXPECT_EQ(url.port, 7);
  EXPECT_EQ(url.prefix, "/x");
  EXPECT_EQ(url.text, "http://[::1]:7/x");
}

TEST(WorkerUrlTest, ErrorsNameTheUrl) {
  for (const auto& [url, why] :
       std::map<std::string, std::string>{{"https://host:1", "https is not supported"},
                                          {"ftp://host:1", "want http://HOST:PORT"},
                                          {"http://:1", "the host is missing"},
                                          {"http://host:", "the port is missing"},
                                          {"http://host:0", "from 1 to 65535"},
                                          {"http://host:65536", "from 1 to 65535"},
                                          {"http://host:1x", "from 1 to 65535"},
                                          {"http://::1:30000", "needs brackets"},
                                          {"http://[::1", "no closing bracket"},
                                          {"http://[::1]x", "want a port"},
                                          {"http://user@host:1", "without user"},
                                          {"", "the host is missing"}}) {
    try {
      ParseWorkerUrl(url);
      ADD_FAILURE() << url;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(why)) << url;
      EXPECT_THAT(error.what(), HasSubstr("worker URL " + url)) << url;
    }
  }
}

TEST(WorkerSetTest, OnlyHealthyWorkersGetRequests) {
  WorkerSet workers(2);
  const auto policy = MakePolicy("round_robin", {}, 0);
  const int64_t a = workers.Add(ParseWorkerUrl("a:1")), b = workers.Add(ParseWorkerUrl("b:1"));
  EXPECT_THROW(workers.Add(ParseWorkerUrl("http://a:1/")), Error);
  EXPECT_FALSE(workers.Acquire(*policy, "", {}, WorkerRole::kPlain));  // no health check yet
  EXPECT_TRUE(workers.CheckSucceeded(a));
  EXPECT_FALSE(workers.CheckSucceeded(a));
  EXPECT_TRUE(workers.CheckSucceeded(b));
  EXPECT_EQ(workers.Acquire(*policy, "", {}, WorkerRole::kPlain).id, a);
  EXPECT_EQ(workers.Acquire(*policy, "", std::array{b}, WorkerRole::kPlain).id, a);
  EXPECT_EQ(workers.All()[0].open, 2);
  workers.Release(a);
  EXPECT_EQ(workers.All()[0].open, 1);

  EXPECT_FALSE(workers.Failed(a, "one"));
  workers.RequestSucceeded(a);  // resets the number of consecutive failures
  EXPECT_FALSE(workers.Failed(a, "one"));
  EXPECT_TRUE(workers.Failed(a, "two"));
  EXPECT_EQ(workers.All()[0].last_failure, "two");
  EXPECT_FALSE(workers.HasOther(std::array{b}, WorkerRole::kPlain));
  EXPECT_TRUE(workers.Refused(b, "refused"));
  EXPECT_FALSE(workers.Acquire(*policy, "", {}, WorkerRole::kPlain));
  EXPECT_EQ(workers.Remove("a:1"), a);
  EXPECT_THROW(workers.Remove("a:1"), Error);
  EXPECT_FALSE(workers.Contains(a));
}

TEST(WorkerSetTest, WorkersOfOtherRolesDoNotCount) {
  WorkerSet workers(2);
  const auto policy = MakePolicy("round_robin", {}, 0);
  const int64_t prefill = workers.Add(ParseWorkerUrl("p:1"), WorkerRole::kPrefill, 7000);
  const int64_t decode = workers.Add(ParseWorkerUrl("d:1"), WorkerRole::kDecode);
  workers.CheckSucceeded(prefill);
  workers.CheckSucceeded(decode);
  for (const auto& [id, role] :
       {std::pair(prefill, WorkerRole::kPrefill), std::pair(decode, WorkerRole::kDecode)}) {
    EXPECT_TRUE(workers.HasOther({}, role));
    const WorkerSet::Lease lease = workers.Acquire(*policy, "", {}, role);
    EXPECT_EQ(lease.id, id);
    EXPECT_EQ(lease.role, role);
    EXPECT_FALSE(workers.HasOther({&id, 1}, role));
    EXPECT_FALSE(workers.Acquire(*policy, "", {&id, 1}, role));
  }
  EXPECT_FALSE(workers.HasOther({}, WorkerRole::kPlain));
  EXPECT_FALSE(workers.Acquire(*policy, "", {}, WorkerRole::kPlain));
}

}  // namespace
}  // namespace switchyard::route
