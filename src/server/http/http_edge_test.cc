// Limits and access: connections, memory, keys, origins, request ids.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

#include "server/http/http_server.h"
#include "server/http/memory_budget.h"
#include "server/http/test_client.h"

namespace switchyard::http {
namespace {

constexpr const char* kEstablished = "01";
constexpr const char* kCloseWait = "08";

// Counts connections of local port `port` in a state of /proc/net/tcp.
int CountConnections(int port, std::string_view wanted) {
  std::ifstream in("/proc/net/tcp");
  int count = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state;
    words >> number >> local >> remote >> state;
    const size_t colon = local.find(':');
    if (state == wanted && colon != std::string::npos &&
        std::stoi(local.substr(colon + 1), nullptr, 16) == port) {
      ++count;
    }
  }
  return count;
}

class HttpEdgeTest : public ::testing::Test {
 protected:
  void Start() {
    server_ = std::make_unique<Server>(options_);
    server_->Route("POST", "/echo", [](auto request, const Responder& responder) {
      responder.Send(200, "text/plain", request->body);
    });
    server_->Route(
        "POST", "/flush", [](auto, const Responder& responder) { responder.Send(200, "", ""); },
        Access::kControl);
    server_->Route("GET", "/used", [](auto, const Responder& responder) {
      const auto& budget = responder.budget();
      responder.Send(200, "text/plain", std::to_string(budget ? budget->used() : 0));
    });
    for (const char* path : {"/hello", "/health"}) {
      server_->Route("GET", path, [](auto request, const Responder& responder) {
        responder.Send(200, "text/plain", request->id);
      });
    }
    server_->Start();
  }
  TestResponse Ask(std::string_view bytes) {
    TestClient client(server_->port());
    client.Send(bytes);
    return client.Read().value_or(TestResponse{});
  }
  int Status(std::string_view method, std::string_view path, std::string_view fields = "") {
    return Ask(std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: a\r\n" +
               std::string(fields) + "\r\n")
        .status;
  }

  ServerOptions options_;
  std::unique_ptr<Server> server_;
};

TEST_F(HttpEdgeTest, ClientsThatCloseLeaveNoConnection) {
  options_.io_threads = 2;
  Start();
  const std::string body(60'000, 'x');
  for (int i = 0; i < 500; ++i) {
    TestClient client(server_->port());
    client.Post("/echo", body);
    ASSERT_EQ(client.Read()->body.size(), body.size());
  }
  // Poll, since the server may not have closed its side yet.
  for (int i = 0; i < 100 && CountConnections(server_->port(), kCloseWait) > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(CountConnections(server_->port(), kCloseWait), 0);
}

TEST_F(HttpEdgeTest, ProbesAreAnsweredBeyondTheLimitOfConnections) {
  options_.max_connections = 2;
  Start();
  TestClient first(server_->port()), second(server_->port());
  first.Get("/hello");
  second.Get("/hello");
  ASSERT_EQ(first.Read()->status, 200);
  ASSERT_EQ(second.Read()->status, 200);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Status("GET", "/health"), 200);
    const TestResponse refused = Ask("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(refused.Header("Retry-After"), "1");
    EXPECT_EQ(refused.Header("Connection"), "close");
  }
}

// The connections send nothing, half a header, or nothing after their response.
TEST_F(HttpEdgeTest, SilentConnectionsBeyondTheLimitDoNotKeepProbesOut) {
  options_.max_connections = 2;
  Start();
  TestClient first(server_->port()), second(server_->port());
  for (TestClient* client : {&first, &second}) {
    client->Get("/hello");
    ASSERT_EQ(client->Read()->status, 200);
  }
  std::vector<std::unique_ptr<TestClient>> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(std::make_unique<TestClient>(server_->port()));
    ASSERT_TRUE(silent.back()->connected());
    if (i % 3 == 1) silent.back()->Send("GET /health HTTP/1.1\r\nHost: ");
    if (i % 3 == 2) silent.back()->Get("/hello");
    if (i % 10 == 9) {
      EXPECT_EQ(Status("GET", "/health"), 200) << i;
    }
  }
  EXPECT_LE(CountConnections(server_->port(), kEstablished), 2 + 64 + 64);
  first.Get("/hello");  // connections within the limit stay open
  EXPECT_EQ(first.Read()->status, 200);
}

TEST_F(HttpEdgeTest, ANewerConnectionDoesNotEndAResponse) {
  options_.max_connections = 1;
  options_.paths_without_key = {"/held"};
  Server server(options_);
  std::mutex mutex;
  std::vector<Responder> held;
  server.Route("GET", "/held", [&](auto, const Responder& responder) {
    const std::lock_guard lock(mutex);
    held.push_back(responder);
  });
  server.Start();
  std::vector<std::unique_ptr<TestClient>> clients, silent;
  const auto hold_until = [&](size_t count) {
    while (clients.size() < count) {
      clients.push_back(std::make_unique<TestClient>(server.port()));
      clients.back()->Get("/held");
    }
    for (int i = 0; i < 6000 && server.open_requests() < count; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_EQ(server.open_requests(), count);
  };
  hold_until(40);
  for (int i = 0; i < 100; ++i) silent.push_back(std::make_unique<TestClient>(server.port()));
  // The last connections take the places of silent connections, which are closed.
  hold_until(1 + 64);
  TestClient refused(server.port());
  EXPECT_EQ(refused.Read().value_or(TestResponse{}).status, 503);
  {
    const std::lock_guard lock(mutex);
    for (const Responder& responder : held) responder.Send(200, "text/plain", "");
  }
  for (const auto& client : clients) {
    const auto answer = client->Read();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->status, 200);
  }
}

TEST_F(HttpEdgeTest, BodiesShareOneMemory) {
  options_.memory_bytes = 8 << 20;
  Start();
  constexpr size_t kFirst = 3 << 20, kLength = 4'000'000;
  const std::string begin =
      fmt::format("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", kLength) +
      std::string(kFirst, 'x');
  TestClient holder(server_->port());
  holder.Send(begin);
  const auto used = [&] { return std::stoull(Ask("GET /used HTTP/1.1\r\nHost: a\r\n\r\n").body); };
  for (int i = 0; i < 3000 && used() < kFirst; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_GE(used(), kFirst);
  // The first body leaves too little of the memory limit for a second body of this size.
  for (int i = 0; i < 5; ++i) {
    TestClient refused(server_->port());
    refused.Send(begin);
    TestClient small(server_->port());
    small.Post("/echo", "still served");
    EXPECT_EQ(small.Read().value_or(TestResponse{}).body, "still served");
    const auto answer = refused.Read();
    EXPECT_TRUE(!answer || answer->status == 503);
  }
  holder.Send(std::string(kLength - kFirst, 'x'));
  EXPECT_EQ(holder.Read().value_or(TestResponse{}).status, 200);
  EXPECT_EQ(Ask("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n" +
                std::string().append(9'000'000, 'x'))
                .status,
            413);
}

TEST(MemoryBudget, GivesBackWhatItsOwnersHeld) {
  const auto budget = std::make_shared<MemoryBudget>(100);
  {
    MemoryCharge a(budget), b(budget);
    EXPECT_TRUE(a.Add(60));
    EXPECT_FALSE(b.Add(41));
    EXPECT_TRUE(b.Add(40));
    EXPECT_TRUE(a.Resize(10));
    MemoryCharge c(std::move(b));
    EXPECT_EQ(budget->used(), 50u);
    EXPECT_THROW(c.Require(200), Error);
    EXPECT_THROW(c.Require(60), Error);
    EXPECT_EQ(budget->used(), 50u);
  }
  EXPECT_EQ(budget->used(), 0u);
  MemoryCharge free;
  EXPECT_TRUE(free.Add(~size_t{0}));
}

TEST_F(HttpEdgeTest, WorkOnABodyHoldsUpNoOtherRequest) {
  Start();
  std::promise<void> go, started;
  Server server({});
  server.Route("POST", "/slow", [&](auto, const Responder& responder) {
    started.set_value();
    go.get_future().wait();
    responder.Send(200, "", "");
  });
  server.Route("GET", "/health",
               [](auto, const Responder& responder) { responder.Send(200, "", ""); });
  server.Route("POST", "/quick",
               [](auto, const Responder& responder) { responder.Send(200, "", ""); });
  server.Start();
  TestClient slow(server.port());
  slow.Post("/slow", std::string(100'000, 'x'));
  started.get_future().wait();
  TestClient other(server.port());
  other.Get("/health");
  EXPECT_EQ(other.Read()->status, 200);
  other.Post("/quick", "small");
  EXPECT_EQ(other.Read()->status, 200);
  go.set_value();
  EXPECT_EQ(slow.Read()->status, 200);
}

TEST_F(HttpEdgeTest, KeysAndTheAdminKey) {
  options_.api_keys = {"one", "two"};
  options_.admin_api_key = "root";
  Start();
  const auto key = [](const char* k) { return std::string("Authorization: Bearer ") + k + "\r\n"; };
  EXPECT_EQ(Status("GET", "/hello"), 401);
  for (const char* good : {"one", "two", "root"})
    EXPECT_EQ(Status("GET", "/hello", key(good)), 200) << good;
  EXPECT_EQ(Status("GET", "/hello", key("three")), 401);
  EXPECT_EQ(Status("POST", "/flush", key("one")), 403);
  EXPECT_EQ(Status("POST", "/flush"), 401);
  EXPECT_EQ(Status("POST", "/flush", key("root")), 200);
  EXPECT_EQ(Status("GET", "/health"), 200);
}

TEST_F(HttpEdgeTest, TheAdminKeyAloneGuardsControlRoutes) {
  options_.admin_api_key = "root";
  Start();
  EXPECT_EQ(Status("GET", "/hello"), 200);
  EXPECT_EQ(Status("POST", "/flush"), 401);
  EXPECT_EQ(Status("POST", "/flush", "Authorization: Bearer root\r\n"), 200);
}

TEST_F(HttpEdgeTest, PagesOfOtherOriginsMayNotCall) {
  options_.cors_origins = {"https://app.example"};
  Start();
  const auto ask = [&](const char* method, const char* host, const char* origin) {
    return Ask(std::string(method) + " " + (*method == 'P' ? "/flush" : "/hello") +
               " HTTP/1.1\r\nHost: " + host + "\r\nOrigin: " + origin + "\r\n\r\n");
  };
  for (const char* good : {"http://localhost:5173", "http://127.0.0.1", "http://[::1]:8000",
                           "https://app.example", "http://gpu7:30000"}) {
    const TestResponse answer = ask("POST", "gpu7:30000", good);
    EXPECT_EQ(answer.status, 200) << good;
    EXPECT_EQ(answer.Header("Access-Control-Allow-Origin"), good);
    EXPECT_EQ(answer.Header("Vary"), "Origin");
  }
  for (const char* bad : {"https://evil.example", "null", "http://localhost.evil.example",
                          "http://127.0.0.1.evil.example", "https://app.example.evil"}) {
    EXPECT_EQ(ask("POST", "gpu7", bad).status, 403) << bad;
    const TestResponse read = ask("GET", "gpu7", bad);
    EXPECT_EQ(read.status, 200);
    EXPECT_EQ(read.Header("Access-Control-Allow-Origin"), "");
  }
  // DNS rebinding: the name of a foreign page resolves to this machine, so Origin and Host are
  // equal.
  EXPECT_EQ(ask("POST", "evil.example:30000", "http://evil.example:30000").status, 403);
}

TEST_F(HttpEdgeTest, RequestsKeepTheirIds) {
  Start();
  const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const TestResponse named =
      Ask("GET /hello HTTP/1.1\r\nHost: a\r\nX-Request-Id: abc-1\r\ntraceparent: " + trace +
          "\r\n\r\n");
  EXPECT_EQ(named.Header("X-Request-Id"), "abc-1");
  EXPECT_EQ(named.Header("traceparent"), trace);
  EXPECT_EQ(named.body, "abc-1");
  const TestResponse fresh = Ask("GET /hello HTTP/1.1\r\nHost: a\r\nX-Request-Id: a b\r\n\r\n");
  EXPECT_EQ(fresh.Header("X-Request-Id").size(), 32u);
  EXPECT_EQ(fresh.Header("traceparent"), "");
  EXPECT_EQ(Ask("GET /no HTTP/1.1\r\nHost: a\r\nX-Request-Id: x\r\n\r\n").Header("X-Request-Id"),
            "x");
}

TEST_F(HttpEdgeTest, PathsMayHaveTheRoot) {
  options_.root_path = "/api";
  Start();
  EXPECT_EQ(Status("GET", "/api/hello"), 200);
  EXPECT_EQ(Status("GET", "/hello"), 200);
  EXPECT_EQ(Status("GET", "/apihello"), 404);
}

}  // namespace
}  // namespace switchyard::http
