#include "server/metrics/names.h"

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace switchyard::metrics {
namespace {

using namespace std::chrono_literals;

// Parses the samples of a page. Fails unless each line is a comment of a metric family, or a sample
// of the family whose comments precede it.
std::map<std::string, double> SamplesOf(const std::string& page) {
  static const std::regex kSample(R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? (\S+))re");
  static const std::regex kLabels(R"re(\{[a-z_]+="(\\.|[^"\\])*"(,[a-z_]+="(\\.|[^"\\])*")*\})re");
  std::map<std::string, double> samples;
  std::set<std::string> families;
  std::string family, type;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, keyword;
    if (line.starts_with("# HELP ")) {
      words >> hash >> keyword >> family;
      EXPECT_TRUE(families.insert(family).second) << "two families " << family;
      continue;
    }
    if (line.starts_with("# TYPE ")) {
      std::string name;
      words >> hash >> keyword >> name >> type;
      EXPECT_EQ(name, family);
      continue;
    }
    std::smatch parts;
    if (!std::regex_match(line, parts, kSample)) {
      ADD_FAILURE() << "not a sample: " << line;
      continue;
    }
    const std::string name = parts[1], labels = parts[2];
    EXPECT_TRUE(labels.empty() || std::regex_match(labels, kLabels)) << line;
    if (type == "histogram") {
      EXPECT_TRUE(name == family + "_bucket" || name == family + "_sum" ||
                  name == family + "_count")
          << line;
    } else {
      EXPECT_EQ(name, family);
    }
    EXPECT_TRUE(samples.emplace(name + labels, std::stod(parts[3])).second) << "twice: " << line;
  }
  return samples;
}

class NamesTest : public ::testing::Test {
 protected:
  NamesTest() {
    RequestTimes times{.submitted = start};
    requests.AddSubmission(16);
    requests.AddOutput(
        {.tokens = 1, .prompt_tokens = 10, .cached_tokens = 4, .queue_seconds = 0.25}, start + 1s,
        &times);
    requests.AddOutput({.tokens = 1, .prompt_tokens = 10}, start + 1s + 50ms, &times);
    requests.AddEnd(End::kStop, times, 10, 2, start + 1s + 50ms);
    requests.CountEnd(End::kTimeout);
    requests.AddCopies(1, 2);
  }

  std::map<std::string, double> Scrape(const std::string& model = "m") {
    Page page;
    AddRequests(requests, model, start + 5s, &page);
    AddGroups(groups, model, &page);
    AddRanks({.epoch = 3, .deaths = 2, .pause_seconds = 0.5}, &page);
    AddResponses(responses, 1, &page);
    return SamplesOf(page.Text());
  }

  const Clock::time_point start{1000s};
  RequestMetrics requests{4096};
  std::vector<EngineStats> groups = {{.running = 2,
                                      .waiting = 3,
                                      .total_pages = 10,
                                      .free_pages = 4,
                                      .cached_pages = 1,
                                      .page_size = 16,
                                      .retractions = 7}};
  http::ResponseCounts responses;
};

TEST_F(NamesTest, OneValueHasTheNamesOfAllThreeServers) {
  auto samples = Scrape();
  EXPECT_EQ(samples.at("switchyard_time_to_first_token_seconds_sum"), 1);
  EXPECT_EQ(samples.at(R"(sglang:time_to_first_token_seconds_sum{model_name="m"})"), 1);
  EXPECT_EQ(samples.at(R"(vllm:time_to_first_token_seconds_sum{model_name="m"})"), 1);
  EXPECT_EQ(samples.at(R"(sglang:num_queue_reqs{model_name="m"})"), 3);
  EXPECT_EQ(samples.at(R"(vllm:num_requests_waiting{engine="0",model_name="m"})"), 3);
  EXPECT_EQ(samples.at(R"(vllm:kv_cache_usage_perc{engine="0",model_name="m"})"), 0.5);
  EXPECT_EQ(samples.at(R"(sglang:num_used_tokens{model_name="m"})"), 80);
  EXPECT_EQ(samples.at(R"(vllm:prefix_cache_hits_total{model_name="m"})"), 4);
  EXPECT_EQ(samples.at(R"(sglang:cache_hit_rate{model_name="m"})"), 0.4);
  EXPECT_EQ(samples.at(R"(sglang:gen_throughput{model_name="m"})"), 0.2);
  EXPECT_EQ(samples.at(R"(vllm:request_params_max_tokens_sum{model_name="m"})"), 16);
}

TEST_F(NamesTest, BucketsHaveTheBoundsOfTheirServer) {
  auto samples = Scrape();
  EXPECT_EQ(samples.at(R"(sglang:inter_token_latency_seconds_bucket{model_name="m",le="0.04"})"),
            0);
  EXPECT_EQ(samples.at(R"(sglang:inter_token_latency_seconds_bucket{model_name="m",le="0.06"})"),
            1);
  EXPECT_EQ(samples.at(R"(vllm:inter_token_latency_seconds_bucket{model_name="m",le="0.075"})"), 1);
  EXPECT_EQ(samples.count(R"(vllm:inter_token_latency_seconds_bucket{model_name="m",le="0.04"})"),
            0u);
  EXPECT_EQ(samples.at(R"(vllm:inter_token_latency_seconds_bucket{model_name="m",le="+Inf"})"), 1);
  // The buckets of token counts end below the context length.
  EXPECT_EQ(samples.count(R"(vllm:request_prompt_tokens_bucket{model_name="m",le="2000"})"), 1u);
  EXPECT_EQ(samples.count(R"(vllm:request_prompt_tokens_bucket{model_name="m",le="5000"})"), 0u);
}

TEST_F(NamesTest, ATimeoutIsAnAbortInOtherServersNames) {
  auto samples = Scrape();
  EXPECT_EQ(samples.at(R"(switchyard_requests_finished_total{reason="timeout"})"), 1);
  EXPECT_EQ(samples.at(R"(switchyard_requests_finished_total{reason="abort"})"), 0);
  EXPECT_EQ(samples.at(R"(sglang:num_aborted_requests_total{model_name="m"})"), 1);
  EXPECT_EQ(samples.at(R"(vllm:request_success_total{finished_reason="abort",model_name="m"})"), 1);
  EXPECT_EQ(samples.at(R"(vllm:request_success_total{finished_reason="stop",model_name="m"})"), 1);
}

TEST_F(NamesTest, AttentionGroupsHaveLabels) {
  groups.push_back({.running = 5});
  auto samples = Scrape();
  EXPECT_EQ(samples.at(R"(switchyard_running_requests{group="1"})"), 5);
  EXPECT_EQ(samples.at(R"(sglang:num_running_reqs{dp_rank="1",model_name="m"})"), 5);
  EXPECT_EQ(samples.at(R"(vllm:num_requests_running{engine="1",model_name="m"})"), 5);
}

TEST_F(NamesTest, CountsResponsesByRouteAndStatus) {
  responses.Add("/v1/models/{id}", "GET", 200);
  responses.Add("/v1/models/{id}", "GET", 404);
  responses.Add("", "BREW", 404);
  responses.Add("", "SPILL", 404);
  auto samples = Scrape();
  EXPECT_EQ(samples.at("switchyard_http_responses_total"
                       R"({method="GET",route="/v1/models/{id}",status="200"})"),
            1);
  EXPECT_EQ(samples.at("sglang:http_responses_total"
                       R"({endpoint="unmatched",method="other",status_code="404"})"),
            2);
}

TEST_F(NamesTest, CountsOfRoutesBeginAtZero) {
  responses.Begin("/generate", "POST");
  responses.Add("/generate", "POST", 500);
  auto samples = Scrape();
  const auto count = [&](int status) {
    return samples.at(
        fmt::format("switchyard_http_responses_total"
                    R"({{method="POST",route="/generate",status="{}"}})",
                    status));
  };
  EXPECT_EQ(count(500), 1);
  for (const int status : {200, 429, 503}) EXPECT_EQ(count(status), 0);
  EXPECT_EQ(samples.count("sglang:http_responses_total"
                          R"({endpoint="/generate",method="POST",status_code="503"})"),
            0u);
}

TEST_F(NamesTest, RestartsOfRanksAreCounted) {
  auto samples = Scrape();
  EXPECT_EQ(samples.at("switchyard_epoch"), 3);
  EXPECT_EQ(samples.at("switchyard_rank_deaths_total"), 2);
  EXPECT_EQ(samples.at("switchyard_pause_seconds_total"), 0.5);
}

TEST_F(NamesTest, LabelsAreEscaped) {
  auto samples = Scrape("a\"b\\c");
  EXPECT_EQ(samples.count(R"(sglang:num_running_reqs{model_name="a\"b\\c"})"), 1u);
}

}  // namespace
}  // namespace switchyard::metrics
