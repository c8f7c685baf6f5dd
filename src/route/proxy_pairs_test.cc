// Requests to a prefill and a decode worker whose responses the tests write.
#include <gmock/gmock.h>

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "core/error.h"
#include "route/route_server.h"
#include "route/test_worker.h"
#include "server/http/error_body.h"
#include "server/http/responses.h"
#include "server/http/test_client.h"

namespace switchyard::route {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Event(const std::string& text) {
  return http::SseEvent(json{{"id", "x"}, {"choices", {{{"index", 0}, {"text", text}}}}}.dump());
}

// The text of all events, and "[DONE]" at the end.
std::string TextOf(const std::string& body) {
  std::string text;
  for (size_t at = 0; (at = body.find("data: ", at)) != std::string::npos;) {
    at += 6;
    const std::string data = body.substr(at, body.find('\n', at) - at);
    if (data == "[DONE]") {
      text += data;
      continue;
    }
    const json event = json::parse(data);
    if (event.contains("error")) return text + "error: " + event["error"].dump();
    for (const json& choice : event["choices"]) text += choice["text"].get<std::string>();
  }
  return text;
}

// Sends the events, and ends the stream, or closes the connection without an end.
Answer Events(std::vector<std::string> texts, bool ends) {
  return [=](const http::Request&, const http::Responder& to) {
    to.BeginStream(200, http::kEventStream);
    for (const std::string& text : texts) to.Write(Event(text));
    if (!ends) return;
    to.Write(http::kSseDone);
    to.EndStream();
  };
}

class PairsTest : public ::testing::Test {
 protected:
  void Start(int max_retries = 3, RouteOptions options = {}) {
    options.prefill = {p1_.url(), "7001", p2_.url()};
    options.decode = {d1_.url(), d2_.url()};
    options.policy = "round_robin";
    if (options.proxy.health_interval == ProxyOptions().health_interval)
      options.proxy.health_interval = 50ms;
    options.proxy.max_retries = max_retries;
    options.proxy.pair_wait = 500ms;
    http::ServerOptions http;
    http.drain_timeout = 0ms;
    router_ = std::make_unique<RouteServer>(options, http);
    router_->Start();
    Eventually([&] { return Healthy() == p1_.healthy + p2_.healthy + d1_.healthy + d2_.healthy; });
  }
  int Healthy() const {
    int count = 0;
    for (const WorkerState& worker : router_->Workers()) count += worker.healthy;
    return count;
  }
  http::TestResponse Post(const std::string& path, const std::string& body) {
    http::TestClient client(router_->port());
    client.Send(fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}", path,
                            body.size(), body));
    return client.Read(false).value_or(http::TestResponse{});
  }
  void AllDecode(const Answer& answer) {
    d1_.Answers(answer);
    d2_.Answers(answer);
  }

  Worker p1_{"p1"}, p2_{"p2"}, d1_{"d1"}, d2_{"d2"};
  std::unique_ptr<RouteServer> router_;
};

TEST_F(PairsTest, BothWorkersGetTheRoom) {
  std::mutex mutex;
  std::map<std::string, json> got;
  const auto keep = [&](const char* name) {
    return [&, name](const http::Request& request, const http::Responder& to) {
      const std::lock_guard lock(mutex);
      got[name] = json::parse(request.body);
      to.Send(200, "application/json", R"({"from":"worker"})");
    };
  };
  p1_.Answers(keep("p1"));
  p2_.Answers(keep("p2"));
  // Like a decode worker, it answers after the prefill worker.
  AllDecode([&](const http::Request& request, const http::Responder& to) {
    const json body = json::parse(request.body);
    const std::string prefill = body.contains("bootstrap_port") ? "p1" : "p2";
    std::thread([&, body, prefill, to] {
      Eventually([&] {
        const std::lock_guard lock(mutex);
        return got.contains(prefill);
      });
      {
        const std::lock_guard lock(mutex);
        got["d"] = body;
      }
      to.Send(200, "application/json", "{}");
    }).detach();
  });
  Start();
  for (const char* prefill : {"p1", "p2"}) {
    const http::TestResponse answer = Post("/v1/completions", R"({"prompt":"a","stream":true})");
    EXPECT_EQ(answer.status, 200);
    const std::lock_guard lock(mutex);
    EXPECT_EQ(got[prefill]["bootstrap_room"], got["d"]["bootstrap_room"]);
    EXPECT_EQ(got[prefill]["seed"], got["d"]["seed"]);
    EXPECT_EQ(got["d"]["bootstrap_host"], "127.0.0.1");
    EXPECT_EQ(got["d"].value("bootstrap_port", 0), prefill == std::string("p1") ? 7001 : 0);
    EXPECT_EQ(got[prefill]["stream"], false);
    EXPECT_EQ(got["d"]["stream"], true);
  }
}

TEST_F(PairsTest, ACutStreamIsContinuedByAnotherPair) {
  d1_.Answers(Events({"The ", "ya"}, false));
  d2_.Answers(Events({"The", " yard", "."}, true));
  Start();
  for (int i = 0; i < 4; ++i) {
    const http::TestResponse answer = Post("/v1/completions", R"({"prompt":"a","stream":true})");
    EXPECT_EQ(TextOf(answer.body), "The yard.[DONE]");
    EXPECT_TRUE(answer.complete);
  }
}

TEST_F(PairsTest, NamedEventsKeepTheirNamesOverWorkers) {
  const auto answer = [](std::vector<std::string> texts, bool ends) -> Answer {
    return [=](const http::Request&, const http::Responder& to) {
      const auto write = [&](const std::string& name, json event) {
        event["type"] = name;
        to.Write("event: " + name + "\n" + http::SseEvent(event.dump()));
      };
      to.BeginStream(200, http::kEventStream);
      write("message_start", {{"message", {{"id", texts.front()}}}});
      for (const std::string& text : texts)
        write("content_block_delta", {{"index", 0}, {"delta", {{"text", text}}}});
      if (!ends) {
        write("error", {{"error", {{"type", "api_error"}, {"message", "it has ended"}}}});
        return to.EndStream();
      }
      write("message_stop", json::object());
      to.EndStream();
    };
  };
  d1_.Answers(answer({"The ", "ya"}, false));
  d2_.Answers(answer({"The", " yard", "."}, true));
  Start();
  for (int i = 0; i < 4; ++i) {
    const http::TestResponse got = Post("/v1/messages", R"({"messages":[],"stream":true})");
    EXPECT_TRUE(got.complete);
    std::string text, names;
    size_t at = 0;
    while ((at = got.body.find("event: ", at)) != std::string::npos) {
      const std::string name = got.body.substr(at + 7, got.body.find('\n', at) - at - 7);
      at = got.body.find("data: ", at) + 6;
      const json event = json::parse(got.body.substr(at, got.body.find('\n', at) - at));
      EXPECT_EQ(event["type"], name);
      if (name == "content_block_delta") {
        text += event["delta"]["text"].get<std::string>();
      } else {
        names += name + " ";
      }
    }
    EXPECT_EQ(text, "The yard.");
    EXPECT_EQ(names, "message_start message_stop ");
  }
}

TEST_F(PairsTest, AnErrorOfAWorkerInTheStreamIsNotSent) {
  d1_.Answers([](const http::Request&, const http::Responder& to) {
    to.BeginStream(200, http::kEventStream);
    to.Write(Event("The"));
    to.Write(http::SseEvent(http::ErrorBody(503, "the prefill worker has ended")));
    to.EndStream();
  });
  d2_.Answers(Events({"The", " yard"}, true));
  Start();
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(TextOf(Post("/v1/completions", R"({"stream":true})").body), "The yard[DONE]");
  // The same for a 503 before the stream begins.
  d1_.Answers([](const http::Request&, const http::Responder& to) { to.SendError(503, "lost"); });
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(TextOf(Post("/v1/completions", R"({"stream":true})").body), "The yard[DONE]");
}

TEST_F(PairsTest, AFailedPrefillWorkerEndsTheAttempt) {
  // The decode worker waits for its prefill worker.
  std::mutex mutex;
  std::vector<http::Responder> waiting;
  std::atomic<int> asked{0};
  AllDecode([&](const http::Request& request, const http::Responder& to) {
    ++asked;
    if (json::parse(request.body).contains("bootstrap_port")) {  // of p1
      const std::lock_guard lock(mutex);
      waiting.push_back(to);
    } else {
      to.Send(200, "application/json", "{}");
    }
  });
  p1_.Answers([](const http::Request&, const http::Responder& to) { to.SendError(503, "drains"); });
  Start();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Post("/generate", "{}").status, 200);
  EXPECT_GE(asked, 5);
  // A status that reports an error in the request (here 413) is sent to the client.
  p1_.Answers([](const http::Request&, const http::Responder& to) { to.SendError(413, "long"); });
  p2_.Answers([](const http::Request&, const http::Responder& to) { to.SendError(413, "long"); });
  AllDecode([&](const http::Request&, const http::Responder& to) {
    const std::lock_guard lock(mutex);
    waiting.push_back(to);
  });
  EXPECT_EQ(Post("/generate", "{}").status, 413);
}

TEST_F(PairsTest, AttemptsAfterAnUnhealthyWorkerCountTheirOwnFailures) {
  RouteOptions options;
  options.proxy.health_interval = 60s;  // requests alone find the failures
  Start(3, options);
  // Prefill worker p1 is stopped. The decode workers give no response to requests with p1. They
  // close the connection of the first other request.
  p1_.Stop();
  std::mutex mutex;
  std::vector<http::Responder> waiting;
  std::atomic<int> cut{0};
  AllDecode([&](const http::Request& request, const http::Responder& to) {
    if (json::parse(request.body).contains("bootstrap_port")) {  // of p1
      const std::lock_guard lock(mutex);
      waiting.push_back(to);
    } else if (++cut == 1) {
      to.BeginStream(200, http::kEventStream);  // and closes the connection
    } else {
      Events({"x"}, true)(request, to);
    }
  });
  EXPECT_EQ(TextOf(Post("/v1/completions", R"({"stream":true})").body), "x[DONE]");
  EXPECT_EQ(cut, 2);
  std::map<WorkerRole, uint64_t> failures;
  for (const WorkerState& worker : router_->Workers()) failures[worker.role] += worker.failures;
  EXPECT_EQ(failures[WorkerRole::kPrefill], 1u);
  EXPECT_EQ(failures[WorkerRole::kDecode], 1u);
}

TEST_F(PairsTest, WithoutAPairTheRequestFails) {
  AllDecode(Events({"x"}, false));
  Start(2);
  const http::TestResponse answer = Post("/v1/completions", R"({"stream":true})");
  EXPECT_THAT(TextOf(answer.body), HasSubstr("xerror"));
  EXPECT_FALSE(answer.complete);
  d1_.healthy = d2_.healthy = false;
  Eventually([&] { return Healthy() == 2; });
  EXPECT_EQ(Post("/generate", "{}").status, 503);
  http::TestClient client(router_->port());
  client.Get("/health");
  EXPECT_EQ(client.Read(false)->status, 503);
}

TEST_F(PairsTest, ARequestThatWaitsForAPairCountsAtNoWorker) {
  // The first attempt fails, and leaves no healthy prefill worker.
  p1_.healthy = false;
  AllDecode([&](const http::Request&, const http::Responder& to) {
    p2_.healthy = false;
    Eventually([&] { return Healthy() == 2; });
    to.SendError(503, "lost");
  });
  Start();
  EXPECT_EQ(Post("/generate", "{}").status, 503);
  uint64_t requests = 0;
  for (const WorkerState& worker : router_->Workers()) {
    requests += worker.role == WorkerRole::kDecode ? worker.requests : 0;
  }
  Eventually([&] { return NoneOpen(*router_); });
  EXPECT_EQ(requests, 1u);
}

TEST_F(PairsTest, OtherRequestsGoToADecodeWorker) {
  Start();
  EXPECT_THAT(Post("/v1/embeddings", "{}").body, HasSubstr("\"d"));
  EXPECT_THAT(Post("/generate", "not JSON").body, HasSubstr("\"d"));
}

TEST_F(PairsTest, APrefillWorkerDoesNotReplaceADecodeWorker) {
  d2_.healthy = false;
  Start();
  for (const int status : {429, 503}) {
    d1_.Answers(
        [=](const http::Request&, const http::Responder& to) { to.SendError(status, "full"); });
    const http::TestResponse answer = Post("/v1/embeddings", "{}");
    EXPECT_EQ(answer.status, status);
    EXPECT_THAT(answer.body, HasSubstr("\"message\":\"full\""));
  }
  // The only decode worker becomes unhealthy, but still answers.
  std::mutex mutex;
  std::vector<http::Responder> held;
  d1_.Answers([&](const http::Request&, const http::Responder& to) {
    const std::lock_guard lock(mutex);
    held.push_back(to);
    d1_.healthy = false;
  });
  std::thread later([&] {
    Eventually([&] { return Healthy() == 2; });
    const std::lock_guard lock(mutex);
    if (!held.empty()) held.back().Send(200, "text/plain", "late");
  });
  EXPECT_EQ(Post("/v1/embeddings", "{}").body, "late");
  later.join();
}

TEST_F(PairsTest, AResponseOverTheLimitIsRefused) {
  RouteOptions options;
  options.proxy.max_response_bytes = 1000;
  options.failure_threshold = 1;
  Start(3, options);
  for (const size_t size : {1000, 1001}) {
    AllDecode([=](const http::Request&, const http::Responder& to) {
      to.Send(200, "application/json", std::string(size, 'x'));
    });
    const int before = d1_.requests + d2_.requests;
    for (const char* path : {"/generate", "/v1/embeddings"}) {
      const http::TestResponse answer = Post(path, "{}");
      EXPECT_EQ(answer.status, size <= 1000 ? 200 : 502) << path;
      if (size <= 1000)
        EXPECT_EQ(answer.body.size(), size);
      else
        EXPECT_THAT(answer.body, HasSubstr("the response exceeds 1000 bytes"));
    }
    // The request is not sent to another worker, whose response would have the same size. The
    // worker is not counted as failed.
    EXPECT_EQ(d1_.requests + d2_.requests, before + 2);
    for (const WorkerState& worker : router_->Workers()) EXPECT_EQ(worker.failures, 0u);
  }
}

TEST_F(PairsTest, WorkersOfEitherKindCanBeAdded) {
  Start();
  Worker more("more");
  EXPECT_EQ(Post("/workers", json{{"url", more.url()}}.dump()).status, 400);
  EXPECT_EQ(Post("/workers", json{{"url", more.url()}, {"worker_type", "x"}}.dump()).status, 400);
  EXPECT_EQ(
      Post("/workers",
           json{{"url", more.url()}, {"worker_type", "prefill"}, {"bootstrap_port", 9000}}.dump())
          .status,
      200);
  Eventually([&] { return Healthy() == 5; });
  EXPECT_EQ(router_->Workers().back().role, WorkerRole::kPrefill);
  EXPECT_EQ(router_->Workers().back().bootstrap_port, 9000);
}

TEST(PrefillWorkersTest, PortsFollowUrls) {
  const auto workers = ParsePrefillWorkers({"http://a:1", "8998", "b:2", "c:3", "9"});
  ASSERT_EQ(workers.size(), 3u);
  EXPECT_EQ(workers[0].bootstrap_port, 8998);
  EXPECT_EQ(workers[1].bootstrap_port, std::nullopt);
  EXPECT_EQ(workers[2].bootstrap_port, 9);
  EXPECT_THROW(ParsePrefillWorkers({"8998"}), Error);
  EXPECT_THROW(ParsePrefillWorkers({"a:1", "1", "2"}), Error);
  EXPECT_THROW(ParsePrefillWorkers({"a:1", "70000"}), Error);
}

}  // namespace
}  // namespace switchyard::route
