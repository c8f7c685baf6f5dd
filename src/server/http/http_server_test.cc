// Requests and responses: status codes, framing, connection reuse. http_stream_test.cc tests
// streams and disconnects; http_stop_test.cc tests the shutdown of a server.
#include "server/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "core/error.h"
#include "server/http/test_client.h"

namespace switchyard::http {
namespace {

using ::testing::HasSubstr;

ServerOptions SmallLimits() {
  ServerOptions options;
  options.max_body_bytes = 1 << 20;
  options.max_header_bytes = 4096;
  return options;
}

// A started server whose routes are: POST /echo and GET /hello, /throw/{kind}, /models/{id},
// /health.
class HttpServerTest : public ::testing::Test {
 protected:
  void Start(ServerOptions options = SmallLimits()) {
    server_ = std::make_unique<Server>(std::move(options));
    server_->Route("POST", "/echo", [](auto request, Responder responder) {
      responder.Send(200, "text/plain", request->body);
    });
    server_->Route("GET", "/hello", [](auto request, Responder responder) {
      const auto name = request->query.find("name");
      responder.Send(200, "text/plain",
                     "hello " + (name == request->query.end() ? "you" : name->second),
                     {{"X-Agent", std::string(request->Header("user-AGENT"))}});
    });
    server_->Route("GET", "/models/{id}", [](auto request, Responder responder) {
      responder.Send(200, "text/plain", request->params.at("id"));
    });
    server_->Route("GET", "/throw/{kind}", [](auto request, Responder) {
      const std::string& kind = request->params.at("kind");
      if (kind == "runtime") throw std::runtime_error("a secret");
      if (kind == "int") throw 1;
      if (kind == "path") throw Invalid("/usr/share/models/x/config.json: bad, see /v1/models");
      throw Error(static_cast<ErrorKind>(std::stoi(kind)), "it says so", "do that");
    });
    server_->Route("GET", "/drop", [](auto, Responder) {});
    server_->Route("GET", "/health",
                   [](auto, Responder responder) { responder.Send(200, "", ""); });
    server_->Start();
  }

  // Sends `bytes` on a new connection and returns the response.
  TestResponse Ask(std::string_view bytes) {
    TestClient client(server_->port());
    client.Send(bytes);
    return client.Read().value_or(TestResponse{});
  }

  std::unique_ptr<Server> server_;
};

TEST_F(HttpServerTest, HandsOverTheWholeRequest) {
  Start();
  TestClient client(server_->port());
  client.Get("/hello?a=1&name=J%C3%BCrgen+K&b", "User-Agent: me\r\n");
  const auto response = client.Read();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body, "hello Jürgen K");
  EXPECT_EQ(response->Header("X-Agent"), "me");
  EXPECT_EQ(response->Header("Content-Type"), "text/plain");
  EXPECT_EQ(response->Header("Connection"), "keep-alive");
  EXPECT_THAT(response->Header("Date"), ::testing::EndsWith(" GMT"));
}

TEST_F(HttpServerTest, ParameterTakesTheRestOfThePath) {
  Start();
  EXPECT_EQ(Ask("GET /models/Qwen/Qwen3-30B%2DA3B HTTP/1.1\r\nHost: a\r\n\r\n").body,
            "Qwen/Qwen3-30B-A3B");
  EXPECT_EQ(Ask("GET /models/ HTTP/1.1\r\nHost: a\r\n\r\n").status, 404);
}

TEST_F(HttpServerTest, KeepsTheConnectionForFurtherRequests) {
  Start();
  TestClient client(server_->port());
  for (int i = 0; i < 5; ++i) {
    client.Post("/echo", std::string(i * 50'000, 'x'));
    const auto response = client.Read();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->body.size(), i * 50'000);
  }
}

TEST_F(HttpServerTest, ClosesWhenAskedTo) {
  Start();
  TestClient client(server_->port());
  client.Get("/hello", "Connection: close\r\n");
  const auto response = client.Read();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->Header("Connection"), "close");
  EXPECT_EQ(client.ReadToEnd(), "");

  TestClient old(server_->port());
  old.Send("GET /hello HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.Read()->body, "hello you");
  EXPECT_EQ(old.ReadToEnd(), "");
}

TEST_F(HttpServerTest, ReadsChunkedBodies) {
  Start();
  TestClient client(server_->port());
  client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
  client.Send("6;a=b\r\n world\r\n0\r\nTrailer: x\r\n\r\n");
  EXPECT_EQ(client.Read()->body, "hello world");
  client.Get("/hello");
  EXPECT_EQ(client.Read()->status, 200);
}

TEST_F(HttpServerTest, SaysContinueBeforeItReadsABody) {
  Start();
  TestClient client(server_->port());
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.Read()->status, 100);
  client.Send("abc");
  EXPECT_EQ(client.Read()->body, "abc");
}

TEST_F(HttpServerTest, RefusesInsteadOfContinue) {
  Start();
  EXPECT_EQ(Ask("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\nExpect: "
                "100-continue\r\n\r\n")
                .status,
            413);
  EXPECT_EQ(Ask("POST /no HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
                .status,
            404);
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  ServerOptions options;
  options.io_threads = 2;
  server_ = std::make_unique<Server>(options);
  std::mutex mutex;  // a response may be sent before emplace_back returns
  std::vector<std::thread> workers;
  server_->Route("POST", "/later", [&](auto request, Responder responder) {
    const std::lock_guard lock(mutex);
    workers.emplace_back([=] { responder.Send(200, "text/plain", request->body); });
  });
  server_->Start();
  TestClient client(server_->port());
  std::string all;
  for (int i = 0; i < 50; ++i) {
    const std::string body = std::to_string(i);
    all += "POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }
  client.Send(all);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.Read()->body, std::to_string(i));
  const std::lock_guard lock(mutex);
  for (std::thread& worker : workers) worker.join();
}

TEST_F(HttpServerTest, HeadHasTheHeadersOfGetAndNoBody) {
  Start();
  TestClient client(server_->port());
  client.Send("HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto head = client.Read(true);
  ASSERT_TRUE(head);
  EXPECT_EQ(head->status, 200);
  EXPECT_EQ(head->Header("Content-Length"), "9");
  client.Get("/hello");  // a body of the response to HEAD would be read here and break the parsing
  EXPECT_EQ(client.Read()->status, 200);
}

TEST_F(HttpServerTest, AnswersBrowsersBeforeTheirRequests) {
  Start();
  const auto ask = [&](const char* origin) {
    return Ask("OPTIONS /echo HTTP/1.1\r\nHost: a\r\nOrigin: " + std::string(origin) +
               "\r\nAccess-Control-Request-Method: POST\r\n"
               "Access-Control-Request-Headers: authorization, x-stainless-os\r\n\r\n");
  };
  const TestResponse local = ask("http://localhost:3000");
  EXPECT_EQ(local.status, 204);
  EXPECT_EQ(local.Header("Access-Control-Allow-Origin"), "http://localhost:3000");
  EXPECT_EQ(local.Header("Access-Control-Allow-Methods"), "POST, OPTIONS");
  EXPECT_EQ(local.Header("Access-Control-Allow-Headers"), "authorization, x-stainless-os");
  const TestResponse foreign = ask("http://evil.example");
  EXPECT_EQ(foreign.status, 204);
  EXPECT_EQ(foreign.Header("Access-Control-Allow-Origin"), "");
  EXPECT_EQ(foreign.Header("Access-Control-Allow-Methods"), "");
}

TEST_F(HttpServerTest, ErrorBodiesAreThoseOfOpenAi) {
  Start();
  const TestResponse response = Ask("GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(response.Header("Content-Type"), "application/json");
  const auto body = nlohmann::json::parse(response.body);
  EXPECT_THAT(body["error"]["message"], HasSubstr("/nowhere"));
  EXPECT_EQ(body["error"]["type"], "not_found_error");
  EXPECT_TRUE(body["error"]["param"].is_null());
  EXPECT_EQ(body["error"]["code"], "unknown_path");
  EXPECT_EQ(body["object"], "error");
}

TEST_F(HttpServerTest, WrongMethodNamesTheRightOnes) {
  Start();
  const TestResponse response = Ask("DELETE /hello HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(response.status, 405);
  EXPECT_EQ(response.Header("Allow"), "GET, HEAD, OPTIONS");
}

TEST_F(HttpServerTest, RefusesWhatIsNoHttp) {
  Start();
  EXPECT_EQ(Ask("hello\r\n\r\n").status, 400);
  EXPECT_EQ(Ask("GET /hello HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n").status, 400);
  EXPECT_EQ(Ask("GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n").status, 400);
  EXPECT_EQ(Ask("GET hello HTTP/1.1\r\nHost: a\r\n\r\n").status, 400);
  EXPECT_EQ(Ask("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1x\r\n\r\n").status, 400);
  EXPECT_EQ(Ask("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n").status, 400);
  EXPECT_EQ(
      Ask("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n").status,
      400);
  EXPECT_EQ(Ask("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: "
                "chunked\r\n\r\n")
                .status,
            400);
  EXPECT_EQ(
      Ask("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n").status,
      400);
  EXPECT_EQ(Ask("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n").status, 501);
  EXPECT_EQ(Ask("GET /hello HTTP/2.0\r\n\r\n").status, 505);
}

TEST_F(HttpServerTest, RefusesBodiesOverTheLimit) {
  Start();
  const std::string body(8 << 20, 'x');
  TestClient client(server_->port());
  client.Post("/echo", body);  // continues to send after the response has arrived
  const auto response = client.Read();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 413);
  EXPECT_THAT(response->body, HasSubstr("1048576"));
  EXPECT_EQ(client.ReadToEnd(), "");

  TestClient chunked(server_->port());
  chunked.Send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) chunked.Send("10000\r\n" + std::string(0x10000, 'x') + "\r\n");
  EXPECT_EQ(chunked.Read()->status, 413);

  TestClient exact(server_->port());
  exact.Post("/echo", std::string(1 << 20, 'x'));
  EXPECT_EQ(exact.Read()->body.size(), 1 << 20);
}

TEST_F(HttpServerTest, RefusesHeadersOverTheLimit) {
  Start();
  EXPECT_EQ(
      Ask("GET /hello HTTP/1.1\r\nHost: a\r\nX: " + std::string(5000, 'x') + "\r\n\r\n").status,
      431);
  EXPECT_EQ(Ask("GET /" + std::string(100'000, 'x') + " HTTP/1.1\r\nHost: a\r\n\r\n").status, 431);
}

TEST_F(HttpServerTest, GivesUpOnRequestsThatDoNotArrive) {
  ServerOptions options;
  options.read_timeout = std::chrono::milliseconds(50);
  Start(options);
  EXPECT_EQ(Ask("GET /hello HTTP/1.1\r\nHost: a\r\nHo").status, 408);
  EXPECT_EQ(Ask("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na").status, 408);
}

TEST_F(HttpServerTest, ClosesIdleConnections) {
  ServerOptions options;
  options.idle_timeout = std::chrono::milliseconds(50);
  Start(options);
  TestClient client(server_->port());
  EXPECT_EQ(client.ReadToEnd(), "");
}

TEST_F(HttpServerTest, AsksForTheKey) {
  ServerOptions options;
  options.api_keys = {"sk-123"};
  Start(options);
  const auto status = [&](std::string_view path, std::string_view authorization) {
    TestClient client(server_->port());
    client.Get(path, authorization);
    return client.Read()->status;
  };
  EXPECT_EQ(status("/hello", ""), 401);
  EXPECT_EQ(status("/hello", "Authorization: Bearer \r\n"), 401);
  EXPECT_EQ(status("/hello", "Authorization: Bearer sk-12\r\n"), 401);
  EXPECT_EQ(status("/hello", "Authorization: Bearer sk-124\r\n"), 401);
  EXPECT_EQ(status("/hello", "Authorization: Bearer sk-123sk-123\r\n"), 401);
  EXPECT_EQ(status("/hello", "Authorization: Basic sk-123\r\n"), 401);
  EXPECT_EQ(status("/nowhere", ""), 401);
  EXPECT_EQ(status("/hello", "Authorization: Bearer sk-123\r\n"), 200);
  EXPECT_EQ(status("/hello", "authorization: bearer sk-123\r\n"), 200);
  EXPECT_EQ(status("/health", ""), 200);
  EXPECT_EQ(Ask("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n").Header("WWW-Authenticate"), "Bearer");
  EXPECT_EQ(Ask("OPTIONS /hello HTTP/1.1\r\nHost: a\r\n\r\n").status, 204);
}

TEST_F(HttpServerTest, ExceptionsBecomeStatusCodes) {
  Start();
  const std::pair<ErrorKind, int> table[] = {
      {ErrorKind::kInvalid, 400},  {ErrorKind::kNotFound, 404}, {ErrorKind::kUnauthorized, 401},
      {ErrorKind::kTooLarge, 413}, {ErrorKind::kBusy, 429},     {ErrorKind::kTimeout, 500},
      {ErrorKind::kPeer, 500},     {ErrorKind::kResource, 500}, {ErrorKind::kUnavailable, 503}};
  TestClient client(server_->port());
  for (const auto& [kind, status] : table) {
    client.Get("/throw/" + std::to_string(static_cast<int>(kind)));
    const auto response = client.Read();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, status);
    EXPECT_THAT(response->body, HasSubstr("it says so (do that)"));
  }
  for (const char* path : {"/throw/runtime", "/throw/int"}) {
    client.Get(path);
    const auto response = client.Read();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 500);
    EXPECT_THAT(response->body, ::testing::Not(HasSubstr("secret")));
  }
  client.Get("/throw/path");
  const auto response = client.Read();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 400);
  EXPECT_THAT(response->body, HasSubstr("\"config.json: bad, see /v1/models\""));
}

TEST_F(HttpServerTest, ADroppedRequestIsA500) {
  Start();
  TestClient client(server_->port());
  client.Get("/drop");
  EXPECT_EQ(client.Read()->status, 500);
  client.Get("/hello");
  EXPECT_EQ(client.Read()->status, 200);
}

TEST_F(HttpServerTest, ServesIpv6) {
  ServerOptions options;
  options.host = "::1";
  try {
    Start(options);
  } catch (const Error& e) {
    GTEST_SKIP() << "no IPv6 here: " << e.what();
  }
  TestClient client(server_->port(), 0, true);
  client.Get("/hello");
  EXPECT_EQ(client.Read()->body, "hello you");
}

// Malformed requests get a response or a closed connection; the server keeps running.
TEST_F(HttpServerTest, SurvivesGarbage) {
  Start();
  const std::string seeds[] = {
      "GET /hello?name=%41&x=y HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
      "OPTIONS * HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\nGET http://a/models/x "
      "HTTP/1.0\r\n\r\n"};
  std::mt19937 random(1);
  const auto below = [&](size_t n) { return random() % n; };
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = seeds[below(4)] + seeds[below(4)];
    for (size_t n = below(8); n-- > 0;) {
      const size_t at = below(bytes.size());
      switch (below(4)) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, below(9));
          break;
        case 2:
          bytes.insert(at, bytes.substr(below(bytes.size()), below(20)));
          break;
        default:
          bytes.insert(at, 1, "\r\n :%0;\0"[below(9)]);
      }
      if (bytes.empty()) bytes = "x";
    }
    TestClient client(server_->port());
    client.Send(bytes);
    if (below(8) == 0) client.Reset();
  }
  TestClient client(server_->port());
  client.Get("/hello");
  EXPECT_EQ(client.Read()->status, 200);
}

}  // namespace
}  // namespace switchyard::http
