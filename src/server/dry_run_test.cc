#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "moe/backends.h"
#include "server/serve.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(std::vector<std::string> flags, const std::optional<LaunchedRank>& launched = {}) {
  flags.insert(flags.begin(),
               {"--model-path", std::string(SWITCHYARD_TEST_DATA) + "/fixtures/qwen3_moe",
                "--max-total-tokens", "1024"});
  try {
    auto args = ParseServe(flags);
    args->engine.backends = std::make_shared<MoeBackends>(BuiltinMoeBackends());
    return ServeLayoutText(*args, PlanLaunch(*args, launched));
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(DryRunTest, DescribesTheLayout) {
  EXPECT_THAT(
      Text({"--device", "cpu", "--tp", "4", "--ep", "2", "--port", "1234"}),
      AllOf(HasSubstr("qwen3_moe: Qwen3MoeForCausalLM, 3 layers, 16 experts, top-"),
            HasSubstr("tp 4, ep 2, dp 1, 8 experts on each rank, 1/2 of each\n"),
            HasSubstr("0 to 3 of 4 here\n"), HasSubstr("cpu, "),
            HasSubstr("cache 0.00 GiB for 1024 tokens\n"), HasSubstr("http://127.0.0.1:1234\n")));
}

TEST(DryRunTest, DescribesOneNodeOfSeveral) {
  EXPECT_THAT(Text({"--device", "cpu", "--tp", "4", "--ep", "4", "--moe-a2a-backend", "deepep",
                    "--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "10.0.0.1:5000"}),
              AllOf(HasSubstr("2 to 3 of 4 here, node 1 of 2, rendezvous at 10.0.0.1:5000\n"),
                    HasSubstr("--moe-a2a-backend deepep"), Not(HasSubstr("http"))));
}

TEST(DryRunTest, RefusesWhatTheServerRefuses) {
  EXPECT_THAT(Text({"--device", "cpu", "--tp", "4", "--ep", "3"}),
              HasSubstr("--ep 3 does not divide"));
  EXPECT_THAT(Text({"--device", "cpu", "--nnodes", "2", "--tp", "2"}),
              HasSubstr("requires --dist-init-addr"));
  EXPECT_THAT(Text({"--device", "cpu", "--moe-a2a-backend", "mailbox"}),
              HasSubstr("no such backend"));
  EXPECT_THAT(Text({"--device", "cpu", "--chat-template", "/nonexistent.jinja"}),
              HasSubstr("nonexistent.jinja"));
  EXPECT_THAT(Text({"--device", "cpu", "--api-key-file", "/nonexistent.keys"}),
              HasSubstr("--api-key-file"));
}

// Ranks of mpirun do not share memory, even on one host.
TEST(DryRunTest, KnowsWhoStartsTheRanks) {
  const std::vector<std::string> deepep = {"--device",          "cpu",   "--tp", "2", "--ep", "2",
                                           "--moe-a2a-backend", "deepep"};
  std::vector<std::string> mooncake = deepep;
  mooncake.back() = "mooncake";
  const LaunchedRank rank{.world = 2, .ranks_of_host = 2, .launcher = "mpirun"};
  EXPECT_THAT(Text(mooncake), HasSubstr("--moe-a2a-backend mooncake"));
  EXPECT_THAT(Text(deepep, rank), HasSubstr("0 of 2 here, node 0 of 2"));
  EXPECT_THAT(Text(mooncake, rank),
              HasSubstr("--moe-a2a-backend mooncake: supported on ranks that share memory only"));
}

}  // namespace
}  // namespace switchyard
