// The router in front of servers whose responses the tests write.
#include "route/route_server.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "route/test_worker.h"
#include "server/http/responses.h"
#include "server/http/test_client.h"

namespace switchyard::route {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Reads the head of a response, or what is left of it, and chunks of its body until they contain
// `text`. Returns all of it.
std::string ReadUntil(http::TestClient& client, const std::string& text) {
  std::string all;
  for (auto line = client.ReadLine(); line && !line->empty(); line = client.ReadLine())
    all += *line + '\n';
  while (all.find(text) == std::string::npos) {
    const auto chunk = client.ReadChunk();
    if (!chunk || chunk->empty()) break;
    all += *chunk;
  }
  return all;
}

class RouteServerTest : public ::testing::Test {
 protected:
  void Start(RouteOptions options = {}, http::ServerOptions http = {}) {
    if (options.policy == "cache_aware") options.policy = "round_robin";
    options.worker_urls = {a_.url(), b_.url()};
    options.proxy.health_interval = 50ms;
    http.drain_timeout = 0ms;
    router_ = std::make_unique<RouteServer>(options, http);
    router_->Start();
    Eventually([&] { return Healthy() == 2; });
  }

  int Healthy() const {
    int count = 0;
    for (const WorkerState& worker : router_->Workers()) count += worker.healthy;
    return count;
  }

  // `what`: method and target.
  http::TestResponse Ask(const std::string& what, const std::string& body = {},
                         const std::string& headers = {}) {
    http::TestClient client(router_->port());
    client.Send(fmt::format("{} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n{}\r\n{}", what,
                            body.size(), headers, body));
    return client.Read(what.starts_with("HEAD")).value_or(http::TestResponse{});
  }

  Worker a_{"a"}, b_{"b"};
  std::unique_ptr<RouteServer> router_;
};

TEST_F(RouteServerTest, ForwardsTheWholeRequest) {
  Start();
  std::mutex mutex;
  http::Request got;
  const Answer keep = [&](const http::Request& request, const http::Responder& to) {
    const std::lock_guard lock(mutex);
    got = request;
    to.Send(201, "text/x", "body", {{"X-Answer", "1"}});
  };
  a_.Answers(keep);
  b_.Answers(keep);
  const http::TestResponse answer =
      Ask("POST /v1/%C3%A4%2Fx?q=a%26b&n=1", "{\"prompt\": \"x\"}",
          "X-Request-Id: id7\r\nX-Extra: e\r\nAuthorization: Bearer k\r\n");
  EXPECT_EQ(answer.status, 201);
  EXPECT_EQ(answer.body, "body");
  EXPECT_EQ(answer.Header("Content-Type"), "text/x");
  EXPECT_EQ(answer.Header("X-Answer"), "1");
  EXPECT_EQ(answer.Header("X-Request-Id"), "id7");
  EXPECT_EQ(got.method, "POST");
  EXPECT_EQ(got.path, "/v1/ä/x");
  EXPECT_EQ(got.query.at("q"), "a&b");
  EXPECT_EQ(got.query.at("n"), "1");
  EXPECT_EQ(got.body, "{\"prompt\": \"x\"}");
  EXPECT_EQ(got.id, "id7");
  EXPECT_EQ(got.Header("X-Extra"), "e");
  EXPECT_EQ(got.Header("Authorization"), "Bearer k");
  EXPECT_EQ(got.Header("X-Forwarded-For"), "127.0.0.1");
  EXPECT_EQ(Ask("HEAD /v1/models").status, 201);
  EXPECT_EQ(Ask("DELETE /v1/responses/r1").status, 201);
}

TEST_F(RouteServerTest, TakesWorkersInTurn) {
  Start();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Ask("GET /x").status, 200);
  EXPECT_EQ(a_.requests, 5);
  EXPECT_EQ(b_.requests, 5);
}

TEST_F(RouteServerTest, StreamsAsTheEventsArrive) {
  Start();
  std::atomic<bool> go{false};
  const Answer stream = [&](const http::Request&, const http::Responder& to) {
    to.BeginStream(200, http::kEventStream);
    to.Write(http::SseEvent("1"));
    std::thread([&go, to] {
      for (int i = 0; i < 1000 && !go; ++i) std::this_thread::sleep_for(10ms);
      to.Write(http::SseEvent("2"));
      to.EndStream();
    }).detach();
  };
  a_.Answers(stream);
  b_.Answers(stream);
  http::TestClient client(router_->port());
  client.Get("/s");
  EXPECT_THAT(ReadUntil(client, "data: 1\n\n"), HasSubstr("text/event-stream"));
  go = true;
  EXPECT_EQ(client.ReadChunk(), "data: 2\n\n");
  EXPECT_EQ(client.ReadChunk(), "");
}

TEST_F(RouteServerTest, AFailureBeforeTheFirstEventIsRetried) {
  Start();
  // Both workers begin a stream with a comment. Then worker a closes the connection.
  a_.Answers([](const http::Request&, const http::Responder& to) {
    to.BeginStream(200, http::kEventStream);
    to.Write(http::SseComment("queued"));
  });
  b_.Answers([](const http::Request&, const http::Responder& to) {
    to.BeginStream(200, http::kEventStream);
    to.Write(http::SseEvent("whole"));
    to.EndStream();
  });
  for (int i = 0; i < 4; ++i) {
    const http::TestResponse answer = Ask("POST /v1/completions", "{}");
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.complete);
    EXPECT_THAT(answer.body, HasSubstr("data: whole\n\n"));
  }
  EXPECT_GE(a_.requests, 1);
}

TEST_F(RouteServerTest, AFailureAfterAnEventEndsTheStreamWithAnError) {
  Start();
  const Answer cut = [](const http::Request&, const http::Responder& to) {
    to.BeginStream(200, http::kEventStream);
    to.Write(http::SseEvent("half"));
  };
  a_.Answers(cut);
  b_.Answers(cut);
  const http::TestResponse answer = Ask("POST /v1/completions", "{}");
  EXPECT_FALSE(answer.complete);
  EXPECT_THAT(answer.body, AllOf(HasSubstr("data: half\n\n"), HasSubstr("\"server_error\"")));
  EXPECT_EQ(a_.requests + b_.requests, 1);
  EXPECT_THAT(Ask("GET /metrics").body, HasSubstr("switchyard_route_cut_streams_total 1\n"));
}

TEST_F(RouteServerTest, StatusesOfABusyWorkerAreRetried) {
  Start();
  for (const int status : {429, 502, 503, 504}) {
    a_.Answers(
        [=](const http::Request&, const http::Responder& to) { to.SendError(status, "no"); });
    for (int i = 0; i < 2; ++i) EXPECT_EQ(Ask("POST /generate", "{}").status, 200) << status;
  }
  // If all workers are busy, the client gets the response of the last one.
  b_.Answers([](const http::Request&, const http::Responder& to) {
    to.SendError(429, "full", "queue_full");
  });
  a_.Answers([](const http::Request&, const http::Responder& to) { to.SendError(429, "full"); });
  const http::TestResponse answer = Ask("POST /generate", "{}");
  EXPECT_EQ(answer.status, 429);
  EXPECT_THAT(answer.body, HasSubstr("full"));
  // Errors of the request itself are not retried.
  const int before = a_.requests + b_.requests;
  for (Worker* worker : {&a_, &b_})
    worker->Answers(
        [](const http::Request&, const http::Responder& to) { to.SendError(400, "?"); });
  EXPECT_EQ(Ask("POST /generate", "{}").status, 400);
  EXPECT_EQ(a_.requests + b_.requests, before + 1);
}

TEST_F(RouteServerTest, AStoppedWorkerGetsNoRequests) {
  Start();
  a_.Stop();
  for (int i = 0; i < 6; ++i) EXPECT_THAT(Ask("GET /x").body, HasSubstr("\"worker\":\"b\""));
  Eventually([&] { return Healthy() == 1; });
  EXPECT_EQ(Ask("GET /health").status, 200);
  b_.Stop();
  Eventually([&] { return Healthy() == 0; });
  EXPECT_EQ(Ask("GET /health").status, 503);
  EXPECT_EQ(Ask("GET /liveness").status, 200);
  const http::TestResponse answer = Ask("GET /x");
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.body, HasSubstr("none of 2 workers is healthy"));
}

TEST_F(RouteServerTest, RequestsOfAWorkerThatHangsGoToAnother) {
  Start();
  std::mutex mutex;
  std::vector<http::Responder> held;
  a_.Answers([&](const http::Request&, const http::Responder& to) {
    const std::lock_guard lock(mutex);
    held.push_back(to);
  });
  std::thread later([&] {
    Eventually([&] { return a_.requests > 0; });
    a_.healthy = false;
  });
  for (int i = 0; i < 2; ++i) EXPECT_THAT(Ask("POST /x", "{}").body, HasSubstr("\"worker\":\"b\""));
  later.join();
  EXPECT_EQ(held.size(), 1u);
}

TEST_F(RouteServerTest, AWorkerThatIsNotReadyGetsRequestsLater) {
  a_.healthy = false;
  RouteOptions options;
  options.policy = "power_of_two";
  options.worker_urls = {a_.url()};
  options.proxy.health_interval = 50ms;
  router_ = std::make_unique<RouteServer>(options, http::ServerOptions{.drain_timeout = 0ms});
  router_->Start();
  EXPECT_EQ(Ask("GET /x").status, 503);
  a_.healthy = true;
  Eventually([&] { return Healthy() == 1; });
  EXPECT_EQ(Ask("GET /x").status, 200);
}

TEST_F(RouteServerTest, WorkersCanBeAddedAndRemoved) {
  Start();
  Worker c("c");
  EXPECT_EQ(Ask("POST /workers", "{\"url\": \"" + c.url() + "/\"}").status, 200);
  EXPECT_EQ(Ask("POST /workers", "{\"url\": \"" + c.url() + "\"}").status, 400);
  Eventually([&] { return Healthy() == 3; });
  EXPECT_EQ(Ask("DELETE /workers/" + a_.url()).status, 200);
  EXPECT_EQ(Ask("POST /remove_worker?url=" + b_.url()).status, 200);
  EXPECT_EQ(Ask("POST /remove_worker?url=" + b_.url()).status, 404);
  EXPECT_THAT(Ask("GET /x").body, HasSubstr("\"worker\":\"c\""));
  const auto list = nlohmann::json::parse(Ask("GET /workers").body)["workers"];
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0]["url"], c.url());
  EXPECT_EQ(list[0]["is_healthy"], true);
  for (const char* body : {"", "[]", "{\"url\": 7}", "{\"url\": \"https://x:1\"}",
                           "{\"url\": \"x:1\", \"name\": \"y\"}"})
    EXPECT_EQ(Ask("POST /workers", body).status, 400) << body;
  EXPECT_EQ(Ask("POST /add_worker").status, 400);
}

TEST_F(RouteServerTest, ADisconnectReachesTheWorker) {
  Start();
  std::atomic<bool> closed{false};
  const Answer endless = [&](const http::Request&, const http::Responder& to) {
    to.BeginStream(200, http::kEventStream);
    to.Write(http::SseEvent("1"));
    to.OnClose([&closed, to] { closed = true; });
  };
  a_.Answers(endless);
  b_.Answers(endless);
  {
    http::TestClient client(router_->port());
    client.Get("/s");
    ReadUntil(client, "data: 1\n\n");
  }
  Eventually([&] { return closed.load(); });
  Eventually([&] { return NoneOpen(*router_); });
  EXPECT_EQ(Healthy(), 2);
}

TEST_F(RouteServerTest, StoredResponsesAreSearchedAtAllWorkers) {
  Start();
  a_.Answers([](const http::Request&, const http::Responder& to) { to.SendError(404, "unknown"); });
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(Ask("GET /v1/responses/resp_1").status, 200);
    EXPECT_EQ(Ask("POST /v1/responses", R"({"previous_response_id": "resp_1"})").status, 200);
  }
  b_.Answers([](const http::Request&, const http::Responder& to) { to.SendError(404, "unknown"); });
  EXPECT_EQ(Ask("GET /v1/responses/resp_1").status, 404);
}

TEST_F(RouteServerTest, ControlRequestsGoToAllWorkers) {
  Start();
  const http::TestResponse answer = Ask("POST /flush_cache");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(nlohmann::json::parse(answer.body)["workers"].size(), 2u);
  EXPECT_EQ(a_.requests, 1);
  EXPECT_EQ(b_.requests, 1);
  b_.Answers([](const http::Request&, const http::Responder& to) { to.SendError(500, "broken"); });
  EXPECT_EQ(Ask("POST /flush_cache").status, 502);
}

// The first worker responds only after the second one has received the request.
TEST_F(RouteServerTest, WorkersGetAControlAtTheSameTime) {
  Start();
  a_.Answers([&](const http::Request& request, const http::Responder& to) {
    EXPECT_EQ(request.body, R"({"mode":"retract"})");
    Eventually([&] { return b_.requests == 1; });
    to.Send(200, "application/json", R"({"paused":3})");
  });
  b_.Answers([](const http::Request&, const http::Responder& to) {
    to.Send(200, "text/plain", "not JSON \xff");
  });
  const http::TestResponse answer = Ask("POST /pause_generation", R"({"mode":"retract"})");
  EXPECT_EQ(answer.status, 200);
  const auto workers = nlohmann::json::parse(answer.body)["workers"];
  EXPECT_EQ(workers[0]["response"]["paused"], 3);
  EXPECT_EQ(workers[1]["response"], "not JSON \xef\xbf\xbd");
}

TEST_F(RouteServerTest, ASessionStaysAtItsWorker) {
  Start();
  const auto opens = [](const char* id) {
    return [id](const http::Request& request, const http::Responder& to) {
      to.Send(200, "application/json",
              request.path == "/open_session" ? fmt::format("\"{}\"", id)
                                              : fmt::format("{{\"at\":\"{}\"}}", id));
    };
  };
  a_.Answers(opens("at-a"));
  b_.Answers(opens("at-b"));
  const std::string one = nlohmann::json::parse(Ask("POST /open_session", "{}").body);
  const std::string two = nlohmann::json::parse(Ask("POST /open_session", "{}").body);
  EXPECT_NE(one, two);
  for (int i = 0; i < 3; ++i)
    for (const std::string& id : {one, two}) {
      const std::string body =
          fmt::format(R"({{"text": "x", "session_params": {{"id": "{}"}}}})", id);
      EXPECT_EQ(nlohmann::json::parse(Ask("POST /generate", body).body)["at"], id);
    }
  // After a session is closed, its name means nothing.
  EXPECT_EQ(
      nlohmann::json::parse(
          Ask("POST /close_session", fmt::format(R"({{"session_id": "{}"}})", one)).body)["at"],
      one);
  const std::string body = fmt::format(R"({{"session_params": {{"id": "{}"}}}})", one);
  EXPECT_NE(Ask("POST /generate", body).body, Ask("POST /generate", body).body);
  // The other worker does not get the requests of a worker that has ended.
  (two == "at-a" ? a_ : b_).Stop();
  EXPECT_GE(
      Ask("POST /generate", fmt::format(R"({{"session_params": {{"id": "{}"}}}})", two)).status,
      502);
  Eventually([&] { return Healthy() == 1; });
  EXPECT_EQ(
      Ask("POST /generate", fmt::format(R"({{"session_params": {{"id": "{}"}}}})", two)).status,
      503);
}

TEST_F(RouteServerTest, MetricsHaveTheWorkersAndTheResponses) {
  Start();
  const std::string before = Ask("GET /metrics").body;
  for (const Worker* worker : {&a_, &b_}) {
    const std::string labels = "{worker=\"" + worker->url() + "\",worker_type=\"regular\"}";
    EXPECT_THAT(before, HasSubstr("switchyard_route_worker_healthy" + labels + " 1\n"));
    EXPECT_THAT(before, HasSubstr("switchyard_route_worker_requests_total" + labels + " 0\n"));
  }
  const auto responses = [](int status, int count) {
    return fmt::format(
        "switchyard_route_http_responses_total{{method=\"POST\",route=\"/"
        "{{path}}\",status=\"{}\"}} {}\n",
        status, count);
  };
  EXPECT_THAT(before, AllOf(HasSubstr(responses(200, 0)), HasSubstr(responses(503, 0))));
  EXPECT_THAT(before, HasSubstr("switchyard_route_info{version="));
  EXPECT_EQ(Ask("POST /x", "{}").status, 200);
  // A response counts only after it has been sent.
  Eventually([&] { return Ask("GET /metrics").body.find(responses(200, 1)) != std::string::npos; });
}

TEST_F(RouteServerTest, KeysOfTheRouterAndOfItsWorkersDiffer) {
  RouteOptions options;
  options.proxy.worker_key = "inner";
  Start(options, {.api_keys = {"outer"}, .admin_api_key = "admin"});
  std::string seen;
  const Answer keep = [&](const http::Request& request, const http::Responder& to) {
    seen = request.Header("authorization");
    to.Send(200, "text/plain", "");
  };
  a_.Answers(keep);
  b_.Answers(keep);
  EXPECT_EQ(Ask("GET /x").status, 401);
  EXPECT_EQ(Ask("GET /x", "", "Authorization: Bearer outer\r\n").status, 200);
  EXPECT_EQ(seen, "Bearer inner");
  EXPECT_EQ(Ask("GET /workers", "", "Authorization: Bearer outer\r\n").status, 403);
  EXPECT_EQ(Ask("GET /workers", "", "Authorization: Bearer admin\r\n").status, 200);
}

TEST_F(RouteServerTest, ManyClientsAtOnce) {
  RouteOptions options;
  options.policy = "power_of_two";
  Start(options);
  std::vector<std::thread> clients;
  std::atomic<int> right{0};
  for (int c = 0; c < 8; ++c)
    clients.emplace_back([&] {
      http::TestClient client(router_->port());
      for (int i = 0; i < 50; ++i) {
        client.Send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
        const auto answer = client.Read();
        right += answer && answer->status == 200;
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 400);
  EXPECT_EQ(a_.requests + b_.requests, 400);
  Eventually([&] { return NoneOpen(*router_); });
}

}  // namespace
}  // namespace switchyard::route
