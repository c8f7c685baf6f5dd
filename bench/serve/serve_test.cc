#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/serve/answer_stream.h"
#include "bench/serve/drafts.h"
#include "bench/serve/load.h"
#include "bench/serve/replay.h"
#include "bench/serve/summary.h"
#include "core/error.h"

namespace switchyard::bench {
namespace {

using ::testing::HasSubstr;

TEST(PlanLoadTest, LengthsIdsAndPausesAreThoseOfTheOptions) {
  const ServeOptions options{.num_prompts = 400,
                             .input_len = 40,
                             .output_len = 10,
                             .range_ratio = 0.5,
                             .request_rate = 20.0};
  const auto plan = PlanLoad(options, /*vocab=*/7);
  ASSERT_EQ(plan.size(), 400u);
  for (const PlannedRequest& request : plan) {
    EXPECT_GE(request.input_ids.size(), 20u);
    EXPECT_LE(request.input_ids.size(), 40u);
    EXPECT_GE(request.output_tokens, 5);
    EXPECT_LE(request.output_tokens, 10);
    for (const int32_t id : request.input_ids) EXPECT_TRUE(id >= 0 && id < 7);
  }
  EXPECT_EQ(plan.front().at, 0.0);
  EXPECT_NEAR(plan.back().at, 20.0, 5.0);  // sum of 399 exponential pauses of 1/20 s; one standard
                                           // deviation is about 1 s
  EXPECT_EQ(PlanLoad(options, 7).back().input_ids, plan.back().input_ids);
}

TEST(PlanLoadTest, LinesAreReadAndMistakesNamed) {
  const auto file = std::filesystem::path(testing::TempDir()) / "prompts.jsonl";
  std::ofstream(file) << "{\"prompt\": \"one\", \"output_len\": 3}\n\n{\"text\": \"two\"}\n";
  ServeOptions options{.dataset = "jsonl", .dataset_path = file, .num_prompts = 3, .output_len = 9};
  const auto plan = PlanLoad(options, 0);
  ASSERT_EQ(plan.size(), 3u);
  EXPECT_EQ(plan[0].text, "one");
  EXPECT_EQ(plan[0].output_tokens, 3);
  EXPECT_EQ(plan[1].text, "two");
  EXPECT_EQ(plan[1].output_tokens, 9);
  EXPECT_EQ(plan[2].text, "one");
  const auto message = [&](const char* content) {
    std::ofstream(file) << content;
    try {
      PlanLoad(options, 0);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message("{\"prompt\": \"a\"}\n{\"promt\": \"b\"}\n"), HasSubstr("prompts.jsonl:2:"));
  EXPECT_THAT(message("nonsense\n"), HasSubstr("prompts.jsonl:1:"));
  EXPECT_THAT(message("{\"text\": \"a\", \"output_len\": 0}"), HasSubstr("output_len"));
  EXPECT_THAT(message(""), HasSubstr("no request"));
  std::filesystem::remove(file);
}

TEST(ReplayTest, RecordedRequestsKeepTheirOrderAndTimes) {
  const auto file = std::filesystem::path(testing::TempDir()) / "replay.jsonl";
  const auto line = [](double time, const char* path, const char* body) {
    return nlohmann::json{{"time", time},
                          {"path", path},
                          {"request", nlohmann::json::parse(body)},
                          {"status", 200}}
               .dump() +
           "\n";
  };
  std::ofstream(file) << line(12.5, "/v1/chat/completions", R"({"messages": [], "rid": "a"})")
                      << line(10, "/generate", R"({"input_ids": [1, 2], "rid": "a"})")
                      << line(11, "/generate", R"({"input_ids": [[1], [2]]})")
                      << line(11, "/v1/completions", R"({"prompt": "x", "n": 2})")
                      << line(11, "/v1/embeddings", R"({"input": "x"})")
                      << line(11, "/generate", R"({"text": "x", "session_params": {"id": "s"}})");
  const Replay replay = ReadReplay(file);
  EXPECT_EQ(replay.skipped, 4);
  ASSERT_EQ(replay.plan.size(), 2u);
  EXPECT_EQ(replay.plan[0].path, "/generate");
  EXPECT_EQ(replay.plan[0].at, 0);
  EXPECT_EQ(replay.plan[1].at, 2.5);
  EXPECT_EQ(nlohmann::json::parse(replay.plan[0].body),
            nlohmann::json::parse(R"({"input_ids": [1, 2], "stream": true})"));
  EXPECT_TRUE(nlohmann::json::parse(replay.plan[1].body)["stream_options"]["include_usage"]);
  for (const char* bad : {"nonsense\n", "{\"path\": \"/generate\"}\n", ""}) {
    std::ofstream(file) << bad;
    EXPECT_THROW(ReadReplay(file), Error) << bad;
  }
  std::filesystem::remove(file);
}

TEST(AnswerStreamTest, CumulativeEventsInPieces) {
  AnswerStream answer("/generate");
  std::string bytes =
      "data: {\"meta_info\": {\"completion_tokens\": 1, \"prompt_tokens\": 5}}\n\ndata: {\"meta";
  EXPECT_EQ(answer.Take(bytes), 1);
  EXPECT_EQ(bytes, "data: {\"meta");
  bytes += "_info\": {\"completion_tokens\": 4}}\n\ndata: [DONE]\n\n";
  EXPECT_EQ(answer.Take(bytes), 3);
  EXPECT_TRUE(answer.done());
  EXPECT_EQ(answer.prompt_tokens(), 5);
  EXPECT_EQ(answer.output_tokens(), 4);
  EXPECT_EQ(answer.error(), "");
}

TEST(AnswerStreamTest, OpenAiCountsEventsAndBelievesUsage) {
  AnswerStream answer("/v1/completions");
  std::string bytes =
      "data: {\"choices\": [{\"text\": \"a\"}]}\n\ndata: {\"choices\": [{\"text\": \"b\"}]}\n\n";
  EXPECT_EQ(answer.Take(bytes), 2);
  bytes =
      "data: {\"choices\": [], \"usage\": {\"completion_tokens\": 3, \"prompt_tokens\": 8}}\n\n";
  EXPECT_EQ(answer.Take(bytes), 1);
  EXPECT_EQ(answer.prompt_tokens(), 8);
  bytes = "data: {\"error\": {\"message\": \"no\"}}\n\n";
  answer.Take(bytes);
  EXPECT_THAT(answer.error(), HasSubstr("no"));
}

TEST(PercentilesTest, NearestRank) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Percentiles p = PercentilesOf(values);
  EXPECT_EQ(p.mean, 50.5);
  EXPECT_EQ(p.median, 50);
  EXPECT_EQ(p.p90, 90);
  EXPECT_EQ(p.p99, 99);
  EXPECT_EQ(p.max, 100);
  EXPECT_EQ(PercentilesOf({3.0}).p99, 3.0);
  EXPECT_EQ(PercentilesOf({}).max, 0.0);
}

TEST(SummaryTest, FiguresOfTwoRequests) {
  const std::vector<RequestRecord> records = {{.sent = 0,
                                               .first = 0.5,
                                               .last = 1.5,
                                               .gaps = {0.5, 0.5},
                                               .prompt_tokens = 10,
                                               .output_tokens = 3},
                                              {.sent = 1,
                                               .first = 1.1,
                                               .last = 2.0,
                                               .gaps = {0.9},
                                               .prompt_tokens = 20,
                                               .output_tokens = 2},
                                              {.error = "refused"}};
  const ServeSummary s = Summarize(records, 2.0);
  EXPECT_EQ(s.completed, 2);
  EXPECT_EQ(s.failed, 1);
  EXPECT_DOUBLE_EQ(s.concurrency, 1.25);
  EXPECT_DOUBLE_EQ(s.ttft.max, 500);
  EXPECT_DOUBLE_EQ(s.itl.median, 500);
  EXPECT_DOUBLE_EQ(s.e2e.mean, 1250);
  EXPECT_DOUBLE_EQ(s.tpot.max, 900);
  EXPECT_THAT(Table(s, {}), HasSubstr("Successful requests:"));
  const auto json = nlohmann::json::parse(Json(s, {}));
  EXPECT_EQ(json["output_throughput"], 2.5);
  EXPECT_EQ(json["median_itl_ms"], 500);
  EXPECT_EQ(json["request_rate"], "inf");
}

TEST(DraftFiguresTest, CountsOfAllGroupsAreAdded) {
  const DraftFigures after = DraftsOf(
      R"({"internal_states": [{"verify_steps": 8, "draft_tokens": 20, "accepted_draft_tokens": 10},
                              {"verify_steps": 4, "draft_tokens": 10, "accepted_draft_tokens": 8}]})");
  const DraftFigures drafts = after - DraftFigures{.steps = 2, .drafted = 5, .accepted = 3};
  EXPECT_EQ(drafts.steps, 10);
  EXPECT_DOUBLE_EQ(drafts.accept_length(), 2.5);
  EXPECT_DOUBLE_EQ(drafts.accept_rate(), 15.0 / 25);
  ServeSummary summary;
  EXPECT_FALSE(nlohmann::json::parse(Json(summary, {})).contains("accept_length"));
  summary.drafts = drafts;
  EXPECT_EQ(nlohmann::json::parse(Json(summary, {}))["accept_length"], 2.5);
  EXPECT_THAT(Table(summary, {}), HasSubstr("15 of 25"));
}

TEST(DraftFiguresTest, OtherServersHaveNone) {
  for (const char* info : {"", "[]", "{}", R"({"internal_states": [{}]})",
                           R"({"internal_states": [{"verify_steps": "many"}]})", "<html>"})
    EXPECT_EQ(DraftsOf(info).steps, 0) << info;
}

}  // namespace
}  // namespace switchyard::bench
