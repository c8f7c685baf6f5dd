// Accepted and refused requests, byte by byte: exact status, and whether the connection stays open.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "server/http/http_server.h"
#include "server/http/test_client.h"

namespace switchyard::http {
namespace {

constexpr bool kLives = true, kEnds = false;

struct FramingCase {
  const char* name;
  std::string bytes;
  int status;  // status of the first final response
  bool lives;  // whether the connection serves a second request
};

std::string Repeat(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

std::string Post(const std::string& fields, const std::string& body = "") {
  return "POST /echo HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n" + body;
}
std::string Chunked(const std::string& body) {
  return Post("Transfer-Encoding: chunked\r\n", body);
}
std::string Get(const std::string& fields) {
  return "GET /hello HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n";
}

std::vector<FramingCase> Cases() {
  using std::string_literals::operator""s;
  return {
      // Request lines.
      {"plain", Get(""), 200, kLives},
      {"empty line before", "\r\n" + Get(""), 200, kLives},
      {"two empty lines before", "\r\n\r\n" + Get(""), 400, kEnds},
      {"line feeds alone", "GET /hello HTTP/1.1\nHost: a\n\n", 400, kEnds},
      {"carriage return alone", "GET /hello HTTP/1.1\rHost: a\r\n\r\n", 400, kEnds},
      {"no version", "GET /hello\r\n\r\n", 400, kEnds},
      {"HTTP/1.0", "GET /hello HTTP/1.0\r\n\r\n", 200, kEnds},
      {"HTTP/1.0 kept", "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200, kLives},
      {"HTTP/1.2", "GET /hello HTTP/1.2\r\nHost: a\r\n\r\n", 200, kLives},
      {"HTTP/2.0", "GET /hello HTTP/2.0\r\nHost: a\r\n\r\n", 505, kEnds},
      {"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, kEnds},
      {"HTTP/1.11", "GET /hello HTTP/1.11\r\nHost: a\r\n\r\n", 400, kEnds},
      {"lower-case http", "GET /hello http/1.1\r\nHost: a\r\n\r\n", 400, kEnds},
      {"two spaces", "GET  /hello HTTP/1.1\r\nHost: a\r\n\r\n", 400, kEnds},
      {"space at the end", "GET /hello HTTP/1.1 \r\nHost: a\r\n\r\n", 400, kEnds},
      {"tab in the line", "GET\t/hello HTTP/1.1\r\nHost: a\r\n\r\n", 400, kEnds},
      {"method is no token", "G(T /hello HTTP/1.1\r\nHost: a\r\n\r\n", 400, kEnds},
      {"unknown method", "BREW /hello HTTP/1.1\r\nHost: a\r\n\r\n", 405, kLives},
      {"CONNECT", "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400, kLives},
      {"absolute target", "GET http://a/hello HTTP/1.1\r\nHost: a\r\n\r\n", 200, kLives},
      {"relative target", "GET hello HTTP/1.1\r\nHost: a\r\n\r\n", 400, kLives},
      {"bad escape", "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400, kLives},
      {"TLS at a plain port", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"s, 400, kEnds},
      // Host.
      {"no Host", "GET /hello HTTP/1.1\r\n\r\n", 400, kEnds},
      {"two Hosts", Get("Host: b\r\n"), 400, kEnds},
      {"the same Host twice", Get("Host: a\r\n"), 400, kEnds},
      {"empty Host", "GET /hello HTTP/1.1\r\nHost:\r\n\r\n", 200, kLives},
      {"Host with a port", "GET /hello HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 200, kLives},
      {"Host with a path", "GET /hello HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, kEnds},
      {"Host with a user", "GET /hello HTTP/1.1\r\nHost: a@b\r\n\r\n", 400, kEnds},
      {"Host with spaces", "GET /hello HTTP/1.1\r\nHost: a b\r\n\r\n", 400, kEnds},
      {"Host with a list", "GET /hello HTTP/1.1\r\nHost: a:1,b\r\n\r\n", 400, kEnds},
      // Fields.
      {"no colon", Get("no colon\r\n"), 400, kEnds},
      {"empty name", Get(": x\r\n"), 400, kEnds},
      {"space before the colon", Get("X : y\r\n"), 400, kEnds},
      {"folded", Get("X: a\r\n  b\r\n"), 400, kEnds},
      {"NUL in a value", Get("X: a\0b\r\n"s), 400, kEnds},
      {"carriage return in a value", Get("X: a\rb\r\n"), 400, kEnds},
      {"Latin letters in a value", Get("X: \xe9\r\n"), 200, kLives},
      {"long header", Get("X: " + std::string(7000, 'x') + "\r\n"), 431, kEnds},
      {"many fields", Get(Repeat("a:\r\n", 1001)), 431, kEnds},
      {"Connection: close", Get("Connection: close\r\n"), 200, kEnds},
      {"close in a list", Get("Connection: keep-alive, Close\r\n"), 200, kEnds},
      // Content-Length.
      {"length", Post("Content-Length: 3\r\n", "abc"), 200, kLives},
      {"length zero", Post("Content-Length: 0\r\n"), 200, kLives},
      {"no length", Post(""), 200, kLives},
      {"leading zeros", Post("Content-Length: 003\r\n", "abc"), 200, kLives},
      {"sign", Post("Content-Length: +3\r\n", "abc"), 400, kEnds},
      {"negative", Post("Content-Length: -1\r\n"), 400, kEnds},
      {"hexadecimal", Post("Content-Length: 0x3\r\n", "abc"), 400, kEnds},
      {"empty length", Post("Content-Length:\r\n"), 400, kEnds},
      {"letters after it", Post("Content-Length: 3x\r\n", "abc"), 400, kEnds},
      {"2^64", Post("Content-Length: 18446744073709551616\r\n"), 400, kEnds},
      {"2^63", Post("Content-Length: 9223372036854775807\r\n"), 400, kEnds},
      {"over the limit", Post("Content-Length: 2000000\r\n"), 413, kEnds},
      {"two lengths", Post("Content-Length: 3\r\nContent-Length: 4\r\n", "abc"), 400, kEnds},
      {"the same length twice", Post("Content-Length: 3\r\nContent-Length: 3\r\n", "abc"), 400,
       kEnds},
      {"list of lengths", Post("Content-Length: 3, 3\r\n", "abc"), 400, kEnds},
      {"body of GET", Get("Content-Length: 3\r\n") + "abc", 200, kLives},
      // Transfer-Encoding.
      {"chunked", Chunked("3\r\nabc\r\n0\r\n\r\n"), 200, kLives},
      {"Chunked", Post("Transfer-Encoding: CHUNKED\r\n", "0\r\n\r\n"), 200, kLives},
      {"length and coding",
       Post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400, kEnds},
      {"coding and length",
       Post("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", "0\r\n\r\n"), 400, kEnds},
      {"unknown coding", Post("Transfer-Encoding: xchunked\r\n", Get("")), 501, kEnds},
      {"gzip", Post("Transfer-Encoding: gzip\r\n", Get("")), 501, kEnds},
      {"gzip, chunked", Post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501, kEnds},
      {"identity", Post("Transfer-Encoding: identity\r\n", "abc"), 501, kEnds},
      {"chunked is not last", Post("Transfer-Encoding: chunked, gzip\r\n"), 400, kEnds},
      {"chunked twice", Post("Transfer-Encoding: chunked, chunked\r\n"), 400, kEnds},
      {"two fields", Post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400,
       kEnds},
      {"empty coding", Post("Transfer-Encoding:\r\n"), 400, kEnds},
      {"vertical tab", Post("Transfer-Encoding: \vchunked\r\n"), 400, kEnds},
      {"parameter", Post("Transfer-Encoding: chunked;a=b\r\n"), 501, kEnds},
      {"coding in HTTP/1.0", "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       400, kEnds},
      // Chunks.
      {"extension", Chunked("3;a=b\r\nabc\r\n0;c\r\n\r\n"), 200, kLives},
      {"trailer", Chunked("3\r\nabc\r\n0\r\nX: y\r\n\r\n"), 200, kLives},
      {"one byte each", Chunked(Repeat("1\r\na\r\n", 1000) + "0\r\n\r\n"), 200, kLives},
      {"size with zeros", Chunked("0003\r\nabc\r\n000\r\n\r\n"), 200, kLives},
      {"no size", Chunked("\r\nabc\r\n"), 400, kEnds},
      {"size is no number", Chunked("xyz\r\n"), 400, kEnds},
      {"size with 0x", Chunked("0x3\r\nabc\r\n0\r\n\r\n"), 400, kEnds},
      {"negative size", Chunked("-3\r\nabc\r\n"), 400, kEnds},
      {"space before the size", Chunked(" 3\r\nabc\r\n"), 400, kEnds},
      {"space after the size", Chunked("3 \r\nabc\r\n"), 400, kEnds},
      {"size of 2^64", Chunked("10000000000000000\r\n"), 400, kEnds},
      {"size over the limit", Chunked("200000\r\n" + std::string(0x200000, 'x')), 413, kEnds},
      {"line feed after the size", Chunked("3\nabc\r\n0\r\n\r\n"), 400, kEnds},
      {"longer than its size", Chunked("3\r\nabcd\r\n0\r\n\r\n"), 400, kEnds},
      {"line feed after the data", Chunked("3\r\nabc\n0\r\n\r\n"), 400, kEnds},
      {"long extension", Chunked("3;" + std::string(20'000, 'a') + "\r\nabc\r\n0\r\n\r\n"), 413,
       kEnds},
      {"many extensions", Chunked(Repeat("1;aaaaaaaaaaaaaaaa\r\na\r\n", 2000)), 413, kEnds},
      {"line feed in an extension", Chunked("3;a\nb\r\nabc\r\n0\r\n\r\n"), 400, kEnds},
      {"long trailer", Chunked("0\r\nX: " + std::string(20'000, 'y') + "\r\n\r\n"), 431, kEnds},
      {"many trailers", Chunked("0\r\n" + Repeat("X: y\r\n", 5000) + "\r\n"), 431, kEnds},
      {"malformed trailer", Chunked("0\r\nno colon\r\n\r\n"), 400, kEnds},
      {"length in a trailer", Chunked("3\r\nabc\r\n0\r\nContent-Length: 9\r\n\r\n"), 200, kLives},
      // Expect and Content-Encoding.
      {"unknown expectation", Post("Expect: junk\r\nContent-Length: 3\r\n", "abc"), 417, kEnds},
      {"compressed body", Post("Content-Encoding: gzip\r\nContent-Length: 3\r\n", "abc"), 415,
       kEnds},
      {"identity body", Post("Content-Encoding: identity\r\nContent-Length: 3\r\n", "abc"), 200,
       kLives},
      {"unknown path with a body", "POST /no HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
       404, kEnds},
  };
}

class HttpFramingTest : public ::testing::Test {
 protected:
  HttpFramingTest() : server_(Options()) {
    server_.Route("POST", "/echo", [](auto request, Responder responder) {
      responder.Send(200, "text/plain", request->body);
    });
    server_.Route("GET", "/hello",
                  [](auto, Responder responder) { responder.Send(200, "text/plain", "hello"); });
    server_.Start();
  }
  static ServerOptions Options() {
    ServerOptions options;
    options.max_body_bytes = 1 << 20;
    options.max_header_bytes = 6000;
    return options;
  }
  Server server_;
};

TEST_F(HttpFramingTest, EachCaseHasItsStatusAndItsEnd) {
  const std::vector<FramingCase> cases = Cases();
  ASSERT_GE(cases.size(), 60u);
  for (const FramingCase& each : cases) {
    SCOPED_TRACE(each.name);
    TestClient client(server_.port());
    client.Send(each.bytes);
    const auto first = client.Read();
    ASSERT_TRUE(first);
    EXPECT_EQ(first->status, each.status);
    EXPECT_EQ(first->Header("Connection"), each.lives ? "keep-alive" : "close");
    client.Send(Get("Connection: close\r\n"));
    const auto second = client.Read();
    EXPECT_EQ(second ? second->status : 0, each.lives ? 200 : 0);
    EXPECT_EQ(client.ReadToEnd(), "");  // no other bytes were parsed as a request
  }
}

// Sends each case one byte at a time: results do not depend on how the input is split.
TEST_F(HttpFramingTest, CasesDoNotDependOnHowBytesArrive) {
  for (const FramingCase& each : Cases()) {
    if (each.bytes.size() > 300) continue;
    SCOPED_TRACE(each.name);
    TestClient client(server_.port());
    client.SendByteByByte(each.bytes);
    const auto first = client.Read();
    ASSERT_TRUE(first);
    EXPECT_EQ(first->status, each.status);
    EXPECT_EQ(first->Header("Connection"), each.lives ? "keep-alive" : "close");
  }
}

TEST_F(HttpFramingTest, AnswersClientsThatEndTheirSide) {
  for (const char* version : {"HTTP/1.0", "HTTP/1.1"}) {
    TestClient client(server_.port());
    client.Send("GET /hello " + std::string(version) + "\r\nHost: a\r\n\r\n");
    client.EndSending();
    const auto response = client.Read();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->body, "hello");
    EXPECT_EQ(client.ReadToEnd(), "");
  }
  TestClient cut(server_.port());
  cut.Send(Post("Content-Length: 3\r\n", "a"));
  cut.EndSending();
  EXPECT_EQ(cut.Read()->status, 400);
}

// An interim response distinguishes a half-closed client from one that has disconnected.
TEST(HttpHalfClose, ALateAnswerArrives) {
  Server server({});
  std::thread worker;
  server.Route("GET", "/late", [&](auto, Responder responder) {
    worker = std::thread([responder] {
      std::this_thread::sleep_for(std::chrono::milliseconds(120));
      EXPECT_FALSE(responder.Closed());
      responder.Send(200, "text/plain", "late");
    });
  });
  server.Start();
  TestClient client(server.port());
  client.Get("/late");
  client.EndSending();
  auto response = client.Read();
  while (response && response->status == 100) response = client.Read();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->body, "late");
  worker.join();
}

}  // namespace
}  // namespace switchyard::http
