// GET /metrics in each state of the server.
#include <gmock/gmock.h>

#include "server/front/test_service.h"
#include "server/http/test_client.h"
#include "server/native/native.h"

namespace switchyard::native {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Ranks that respond to queries.
struct QueriedLink : RankLink {
  void Send(const std::vector<ControlMessage>& messages) override {
    for (const ControlMessage& message : messages)
      if (const auto* stats = std::get_if<GetStats>(&message))
        front->OnMessage(StatsReport{.ticket = stats->ticket, .groups = {{.running = 2}}});
  }
  Front* front = nullptr;
};

TEST(MetricsTest, ArePresentInEachState) {
  TestService world("qwen3_moe");
  world.plan.max_running_requests = 3;
  QueriedLink link;
  Front front(link, *world.model.tokenizer,
              {.vocab_size = 8, .context_length = 512, .max_open = 10});
  link.front = &front;
  Service service{front, world.model, world.args, world.plan};
  http::Server server({});
  RegisterMetrics(server, service);
  server.Start();
  const auto page = [&] {
    http::TestClient client(server.port());
    client.Get("/metrics");
    const http::TestResponse response = client.Read(false).value_or(http::TestResponse{});
    EXPECT_EQ(response.status, 200);
    return response.body;
  };
  const auto in_state = [](const char* state, const char* ranks) {
    return AllOf(HasSubstr(fmt::format("switchyard_state{{state=\"{}\"}} 1\n", state)),
                 HasSubstr(fmt::format("switchyard_serving_ranks {}\n", ranks)));
  };
  const auto has_groups = HasSubstr("switchyard_running_requests{group=\"0\"} 2\n");

  const std::string loading = page();
  EXPECT_THAT(loading, AllOf(in_state("starting", "0"), Not(has_groups)));
  EXPECT_THAT(loading, HasSubstr("switchyard_state{state=\"ready\"} 0\n"));
  EXPECT_THAT(loading,
              HasSubstr("switchyard_info{model_name=\"" + world.model.name + "\",version="));
  EXPECT_THAT(loading, HasSubstr("switchyard_max_running_requests{group=\"0\"} 3\n"));
  EXPECT_THAT(loading, HasSubstr("switchyard_max_waiting_requests 7\n"));
  for (const int status : {200, 429, 500, 503})
    EXPECT_THAT(loading, HasSubstr(fmt::format("switchyard_http_responses_total{{method=\"GET\","
                                               "route=\"/metrics\",status=\"{}\"}} 0\n",
                                               status)));
  service.ready = true;
  EXPECT_THAT(page(), AllOf(in_state("ready", "1"), has_groups));
  service.find_silent_rank = [] { return std::string("rank 0 sends no heartbeat"); };
  EXPECT_THAT(page(), AllOf(in_state("ready", "0"), Not(has_groups)));
  service.find_silent_rank = [] { return std::string(); };
  front.Pause({.why = "killed", .time = std::chrono::steady_clock::now()});
  EXPECT_THAT(page(), in_state("restarting", "0"));
  front.Resume();
  front.StartDraining();
  EXPECT_THAT(page(), AllOf(in_state("draining", "1"), has_groups));
  front.OnRanksLost("a rank ended");
  EXPECT_THAT(page(), AllOf(in_state("lost", "0"), Not(has_groups)));
  EXPECT_THAT(page(), HasSubstr("route=\"/metrics\",status=\"200\"}"));
}

}  // namespace
}  // namespace switchyard::native
