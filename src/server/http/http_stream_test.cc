// Streamed responses, slow clients, and disconnects.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "server/http/http_server.h"
#include "server/http/responses.h"
#include "server/http/test_client.h"

namespace switchyard::http {
namespace {

constexpr std::chrono::minutes kWaitTimeout{1};

// GET /open passes its Responder to the test and reports a disconnect of its client.
class HttpStreamTest : public ::testing::Test {
 protected:
  void Start(ServerOptions options = {}) {
    server_ = std::make_unique<Server>(std::move(options));
    server_->Route("GET", "/open", [this](auto, Responder responder) {
      responder.OnClose([this] {
        if (++closed_count_ == 1) closed_.set_value();
      });
      opened_.set_value(responder);
    });
    server_->Route("GET", "/hello",
                   [](auto, Responder responder) { responder.Send(200, "text/plain", "hello"); });
    server_->Start();
  }

  Responder Opened() { return opened_.get_future().get(); }
  bool WaitForClose() {
    return closed_.get_future().wait_for(kWaitTimeout) == std::future_status::ready;
  }

  std::promise<Responder> opened_;
  std::promise<void> closed_;
  std::atomic<int> closed_count_ = 0;
  std::unique_ptr<Server> server_;
};

TEST_F(HttpStreamTest, ChunksArriveOneByOne) {
  Start();
  TestClient client(server_->port());
  client.Get("/open");
  const Responder responder = Opened();
  responder.BeginStream(200, kEventStream);
  for (int i = 0; i < 3; ++i) {
    const std::string event = SseEvent(std::to_string(i));
    responder.Write(event);
    if (i == 0) {
      while (const auto line = client.ReadLine()) {
        if (*line == "Cache-Control: no-cache") break;
      }
      while (const auto line = client.ReadLine()) {
        if (line->empty()) break;
      }
    }
    EXPECT_EQ(client.ReadChunk(), event);  // each event arrives before the next one is written
  }
  responder.Write("");  // an empty chunk must not end the stream
  responder.Write("last");
  EXPECT_EQ(client.ReadChunk(), "last");
  responder.EndStream();
  EXPECT_EQ(client.ReadChunk(), "");
  client.Get("/hello");
  EXPECT_EQ(client.Read()->body, "hello");
  EXPECT_EQ(closed_count_, 0);
}

TEST_F(HttpStreamTest, EventStreamsAreNotCached) {
  Start();
  TestClient client(server_->port());
  client.Get("/open");
  const Responder responder = Opened();
  responder.BeginStream(200, kEventStream);
  responder.EndStream();
  const auto response = client.Read();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->Header("Content-Type"), "text/event-stream");
  EXPECT_EQ(response->Header("Cache-Control"), "no-cache");
  EXPECT_EQ(response->Header("X-Accel-Buffering"), "no");
}

TEST_F(HttpStreamTest, OldClientsGetTheBodyWithoutChunks) {
  Start();
  TestClient client(server_->port());
  client.Send("GET /open HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const Responder responder = Opened();
  responder.BeginStream(200, "text/plain");
  responder.Write("a");
  responder.Write("b");
  responder.EndStream();
  const auto response = client.Read();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->Header("Connection"), "close");
  EXPECT_EQ(response->body, "ab");
}

TEST_F(HttpStreamTest, AStreamThatIsDroppedIsCutOff) {
  Start();
  server_.reset();
  Server server({});
  server.Route("GET", "/cut", [](auto, Responder responder) {
    responder.BeginStream(200, "text/plain");
    responder.Write("half");
  });
  server.Start();
  TestClient client(server.port());
  client.Get("/cut");
  const auto response = client.Read();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->body, "half");
  EXPECT_FALSE(response->complete);
}

TEST_F(HttpStreamTest, OnlyTheFirstAnswerCounts) {
  Start();
  TestClient client(server_->port());
  client.Get("/open");
  const Responder responder = Opened();
  responder.EndStream();
  responder.Write("x");
  responder.Send(201, "text/plain", "first");
  responder.Send(202, "text/plain", "second");
  responder.BeginStream(203, "text/plain");
  responder.Write("third");
  const auto response = client.Read();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 201);
  EXPECT_EQ(response->body, "first");
  client.Get("/hello");
  EXPECT_EQ(client.Read()->body, "hello");
}

TEST_F(HttpStreamTest, DetectsADisconnectWhileNothingIsWritten) {
  for (const bool streaming : {false, true}) {
    for (const bool reset : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "streaming " << streaming << " reset " << reset);
      opened_ = {};
      closed_ = {};
      closed_count_ = 0;
      Start();
      TestClient client(server_->port());
      client.Get("/open");
      const Responder responder = Opened();
      EXPECT_FALSE(responder.Closed());
      if (streaming) responder.BeginStream(200, kEventStream);
      reset ? client.Reset() : client.Close();
      EXPECT_TRUE(WaitForClose());
      EXPECT_TRUE(responder.Closed());
      responder.Write("into the void");
      responder.EndStream();
      responder.Send(200, "text/plain", "into the void");
      bool called = false;
      responder.OnClose([&] { called = true; });
      EXPECT_TRUE(called);
      EXPECT_EQ(closed_count_, 1);
    }
  }
}

TEST_F(HttpStreamTest, DetectsADisconnectBehindManyPipelinedBytes) {
  Start();
  TestClient client(server_->port());
  client.Get("/open");
  const Responder responder = Opened();
  client.Send(std::string(100'000, 'x'));  // more than the server reads ahead
  client.Close();
  EXPECT_TRUE(WaitForClose());
}

TEST_F(HttpStreamTest, KeepsARequestThatArrivesDuringTheResponse) {
  Start();
  TestClient client(server_->port());
  client.Get("/open");
  const Responder responder = Opened();
  client.Get("/hello");
  responder.BeginStream(200, "text/plain");
  responder.Write("stream");
  responder.EndStream();
  EXPECT_EQ(client.Read()->body, "stream");
  EXPECT_EQ(client.Read()->body, "hello");
}

TEST_F(HttpStreamTest, NoCloseAfterACompleteResponse) {
  Start();
  for (const bool streaming : {false, true}) {
    opened_ = {};
    TestClient client(server_->port());
    client.Get("/open");
    const Responder responder = Opened();
    if (streaming) {
      responder.BeginStream(200, "text/plain");
      responder.EndStream();
    } else {
      responder.Send(200, "text/plain", "done");
    }
    EXPECT_EQ(client.Read()->status, 200);
    client.Close();
    EXPECT_FALSE(responder.Closed());
  }
  server_.reset();
  EXPECT_EQ(closed_count_, 0);
}

TEST_F(HttpStreamTest, ClosesTheConnectionOfASlowReader) {
  ServerOptions options;
  options.max_backlog_bytes = 1 << 20;
  Start(options);
  TestClient client(server_->port(), 4096);
  client.Get("/open");
  const Responder responder = Opened();
  responder.BeginStream(200, "text/plain");
  const std::string chunk(64 << 10, 'x');
  // The kernel buffers a few MiB before the backlog grows.
  for (int i = 0; i < 10'000 && !responder.Closed(); ++i) responder.Write(chunk);
  EXPECT_TRUE(responder.Closed());
  EXPECT_TRUE(WaitForClose());
  client.ReadToEnd();  // returns once the connection has ended
  EXPECT_EQ(closed_count_, 1);
}

TEST_F(HttpStreamTest, ClosesTheConnectionOfAReaderThatReadsNothing) {
  ServerOptions options;
  options.write_timeout = std::chrono::milliseconds(50);
  Start(options);
  TestClient client(server_->port(), 4096);
  client.Get("/open");
  const Responder responder = Opened();
  responder.BeginStream(200, "text/plain");
  for (int i = 0; i < 7; ++i) responder.Write(std::string(1 << 20, 'x'));
  EXPECT_TRUE(WaitForClose());
}

TEST_F(HttpStreamTest, ABodyMayBeLargerThanTheBacklog) {
  ServerOptions options;
  options.max_backlog_bytes = 1 << 10;
  Start(options);
  TestClient client(server_->port(), 4096);
  client.Get("/open");
  Opened().Send(200, "text/plain", std::string(8 << 20, 'x'));
  EXPECT_EQ(client.Read()->body.size(), 8 << 20);
}

// 64 streams from 64 producer threads. A third of the clients have a small receive buffer,
// and a third disconnect after the status line.
TEST_F(HttpStreamTest, ManyStreamsAtOnce) {
  constexpr int kClients = 64;
  constexpr int kChunks = 200;
  ServerOptions options;
  options.io_threads = 2;
  Server server(options);
  std::mutex mutex;
  std::vector<std::thread> producers;
  std::atomic<int> hang_ups = 0;
  server.Route("GET", "/stream/{id}", [&](auto request, Responder responder) {
    std::lock_guard lock(mutex);
    producers.emplace_back([&hang_ups, responder, id = request->params.at("id")] {
      responder.OnClose([&hang_ups] { ++hang_ups; });
      responder.BeginStream(200, kEventStream);
      for (int i = 0; i < kChunks; ++i) {
        responder.Write(SseEvent(id + ":" + std::to_string(i) + std::string(i, '.')));
        if (i % 20 == 0) std::this_thread::yield();
      }
      // For clients that disconnect, wait until the disconnect is detected.
      while (std::stoi(id) % 3 == 1 && !responder.Closed()) std::this_thread::yield();
      responder.Write(kSseDone);
      responder.EndStream();
    });
  });
  server.Start();

  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      TestClient client(server.port(), c % 3 == 2 ? 4096 : 0);
      client.Get("/stream/" + std::to_string(c));
      if (c % 3 == 1) {
        client.ReadLine();
        client.Close();
        return;
      }
      std::string expected;
      for (int i = 0; i < kChunks; ++i) {
        expected += SseEvent(std::to_string(c) + ":" + std::to_string(i) + std::string(i, '.'));
      }
      const auto response = client.Read();
      ASSERT_TRUE(response);
      EXPECT_TRUE(response->complete);
      EXPECT_EQ(response->body, expected + kSseDone);
    });
  }
  for (std::thread& client : clients) client.join();
  {
    std::lock_guard lock(mutex);  // a stream may end before its emplace_back returns
    for (std::thread& producer : producers) producer.join();
  }
  server.Stop();
  EXPECT_EQ(hang_ups, kClients / 3);
  EXPECT_EQ(server.open_requests(), 0u);
}

}  // namespace
}  // namespace switchyard::http
