// Start and stop of a server: ports, draining, and resource leaks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <thread>

#include "core/error.h"
#include "server/http/http_server.h"
#include "server/http/test_client.h"

namespace switchyard::http {
namespace {

using ::testing::HasSubstr;

size_t CountEntries(const char* directory) {
  const std::filesystem::directory_iterator entries(directory);
  return std::distance(begin(entries), end(entries));
}

class HttpStopTest : public ::testing::Test {
 protected:
  HttpStopTest() {
    options_.io_threads = 2;
    options_.drain_timeout = std::chrono::minutes(1);
  }

  // GET /open passes its Responder to the test; GET /hello responds immediately.
  void Start() {
    server_ = std::make_unique<Server>(options_);
    server_->Route("GET", "/open", [this](auto, Responder responder) {
      responder.OnClose([this] { ++closed_; });
      opened_.set_value(responder);
    });
    server_->Route("GET", "/hello",
                   [](auto, Responder responder) { responder.Send(200, "text/plain", "hello"); });
    server_->Start();
  }

  ServerOptions options_;
  std::promise<Responder> opened_;
  std::atomic<int> closed_ = 0;
  std::unique_ptr<Server> server_;
};

TEST_F(HttpStopTest, LeavesNoThreadAndNoDescriptor) {
  const size_t descriptors = CountEntries("/proc/self/fd");
  const size_t threads = CountEntries("/proc/self/task");
  Start();
  {
    TestClient idle(server_->port());
    TestClient fresh(server_->port());
    TestClient open(server_->port());
    idle.Get("/hello");
    EXPECT_EQ(idle.Read()->status, 200);
    open.Get("/open");
    const Responder responder = opened_.get_future().get();
    responder.BeginStream(200, "text/plain");
    std::thread stop([&] { server_->Stop(); });
    EXPECT_EQ(idle.ReadToEnd(), "");  // closed while the open response continues
    responder.EndStream();
    EXPECT_TRUE(open.Read()->complete);
    stop.join();
  }
  EXPECT_EQ(CountEntries("/proc/self/fd"), descriptors);
  EXPECT_EQ(CountEntries("/proc/self/task"), threads);
  EXPECT_EQ(closed_, 0);
}

TEST_F(HttpStopTest, WaitsForResponsesInFlight) {
  Start();
  TestClient client(server_->port());
  client.Get("/open");
  const Responder responder = opened_.get_future().get();
  EXPECT_EQ(server_->open_requests(), 1u);
  server_->StopAccepting();
  EXPECT_FALSE(TestClient(server_->port()).connected());
  std::thread stop([&] { server_->Stop(); });
  responder.Send(200, "text/plain", "in time");
  const auto response = client.Read();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->body, "in time");
  stop.join();
  EXPECT_EQ(server_->open_requests(), 0u);
  EXPECT_EQ(closed_, 0);
}

TEST_F(HttpStopTest, ClosesWhatDoesNotFinish) {
  options_.drain_timeout = std::chrono::milliseconds(10);
  Start();
  TestClient client(server_->port());
  client.Get("/open");
  const Responder responder = opened_.get_future().get();
  server_->Stop();
  EXPECT_EQ(closed_, 1);
  EXPECT_TRUE(responder.Closed());
  server_.reset();
  responder.Send(200, "text/plain", "too late");  // the Responder outlives the server
  EXPECT_FALSE(client.Read());
}

TEST_F(HttpStopTest, ServesOpenConnectionsOnceMoreAfterStopAccepting) {
  Start();
  TestClient client(server_->port());
  client.Get("/hello");
  EXPECT_EQ(client.Read()->Header("Connection"), "keep-alive");
  server_->StopAccepting();
  client.Get("/hello");
  EXPECT_EQ(client.Read()->Header("Connection"), "close");
  EXPECT_EQ(client.ReadToEnd(), "");
}

TEST_F(HttpStopTest, AHandlerMayStopAccepting) {
  server_ = std::make_unique<Server>(options_);
  server_->Route("POST", "/quit", [this](auto, Responder responder) {
    server_->StopAccepting();
    responder.Send(200, "text/plain", "bye");
  });
  server_->Start();
  TestClient client(server_->port());
  client.Post("/quit", "");
  EXPECT_EQ(client.Read()->body, "bye");
  server_->Stop();
  server_->Stop();
}

TEST_F(HttpStopTest, APortInUseSaysWhatToDo) {
  Start();
  options_.port = server_->port();
  Server second(options_);
  try {
    second.Start();
    FAIL() << "started on a port in use";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kResource);
    EXPECT_THAT(e.what(), HasSubstr("port " + std::to_string(options_.port) + " is in use"));
    EXPECT_THAT(e.what(), HasSubstr("--port"));
  }
  server_->Stop();
  second.Start();  // possible although old connections are in TIME_WAIT
}

TEST_F(HttpStopTest, RefusesHostsAndOptionsThatCannotBe) {
  options_.host = "no such host";
  EXPECT_THROW(Server(options_).Start(), Error);
  options_.host = "203.0.113.1";  // documentation address (RFC 5737), not on this machine
  EXPECT_THROW(Server(options_).Start(), Error);
  options_.port = 70'000;
  EXPECT_THROW(Server{options_}, Error);
}

TEST_F(HttpStopTest, EndsWithoutHavingStarted) { Server server(options_); }

}  // namespace
}  // namespace switchyard::http
