// Parts that are independent of connections: targets, routes, error bodies, events, heads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/http/error_body.h"
#include "server/http/exchange.h"
#include "server/http/request_parser.h"
#include "server/http/responses.h"
#include "server/http/router.h"

namespace switchyard::http {
namespace {

TEST(RequestTargetTest, DecodesPathAndQuery) {
  const auto target = ParseTarget("/a%20b+c/%C3%A9?x=1+2&y=%26%3D&&z&x=3#f");
  ASSERT_TRUE(target);
  EXPECT_EQ(target->path, "/a b+c/é");
  EXPECT_EQ(target->query,
            (std::map<std::string, std::string>{{"x", "3"}, {"y", "&="}, {"z", ""}}));
}

TEST(RequestTargetTest, TakesAllForms) {
  EXPECT_EQ(ParseTarget("http://host:1/a?b=c")->path, "/a");
  EXPECT_EQ(ParseTarget("http://host?b=c")->path, "/");
  EXPECT_EQ(ParseTarget("https://host")->path, "/");
  EXPECT_EQ(ParseTarget("*")->path, "*");
  for (const char* bad : {"", "a", "?a", "host:443", "/%", "/%4", "/%g0", "/?a=%4", "/?%zz"}) {
    EXPECT_FALSE(ParseTarget(bad)) << bad;
  }
}

TEST(RouterTest, PrefersExactPathsAndLongPrefixes) {
  Router router;
  const auto exchange = std::make_shared<Exchange>(Exchange::Options{}, nullptr);
  exchange->Send(200, "", "", {});  // avoids a log message about a missing response
  std::string called;
  const auto handler = [&](const char* name) {
    return
        [&called, name](const std::shared_ptr<const Request>&, const Responder&) { called = name; };
  };
  router.Add("GET", "/a/{x}", handler("a"));
  router.Add("GET", "/a/b/{y}", handler("ab"));
  router.Add("GET", "/a/b/c", handler("abc"));
  router.Add("DELETE", "/a/{x}", handler("delete"));
  const auto find = [&](const char* method, const char* path) {
    const Router::Match match = router.Find(method, path);
    called.clear();
    if (match.handler != nullptr) (*match.handler)(nullptr, Responder(exchange));
    return called;
  };
  EXPECT_EQ(find("GET", "/a/b/c"), "abc");
  EXPECT_EQ(find("GET", "/a/b/d"), "ab");
  EXPECT_EQ(find("GET", "/a/b"), "a");
  EXPECT_EQ(find("DELETE", "/a/z"), "delete");
  EXPECT_EQ(find("POST", "/a/z"), "");
  std::string entries;
  for (const Router::Entry& e : router.Entries()) entries += e.method + " " + e.path + ", ";
  EXPECT_EQ(entries, "GET /a/b/c, GET /a/b/{y}, DELETE /a/{x}, GET /a/{x}, ");
  EXPECT_EQ(router.RouteOf("/a/b/c"), "/a/b/c");
  EXPECT_EQ(router.RouteOf("/a/b/d"), "/a/b/{y}");
  EXPECT_EQ(router.RouteOf("/z"), "");
  EXPECT_EQ(router.Find("POST", "/a/z").allow, "DELETE, GET, HEAD, OPTIONS");
  EXPECT_EQ(router.Find("GET", "/z").allow, "");
}

std::string Kept(Exchange& exchange, bool truncated) {
  bool is_truncated = !truncated;
  std::string kept = exchange.TakeKept(&is_truncated);
  EXPECT_EQ(is_truncated, truncated);
  return kept;
}

TEST(ExchangeTest, KeptBytesAreLimitedAndCharged) {
  const auto budget = std::make_shared<MemoryBudget>(10);
  const auto make = [&](size_t kept) {
    Exchange exchange({.budget = budget, .kept_bytes = kept}, nullptr);
    exchange.BeginStream(200, "text/plain", {});
    for (const char* chunk : {"abcd", "efgh", "ijkl", "m"}) exchange.Write(chunk);
    EXPECT_LE(budget->used(), 10u);
    EXPECT_EQ(budget->used() > 0, kept > 0);
    return Kept(exchange, /*truncated=*/true);
  };
  EXPECT_EQ(make(0), "");
  EXPECT_EQ(make(6), "abcdef");
  EXPECT_EQ(make(100), "abcdefgh");  // "m" would fit, but after a gap
  EXPECT_EQ(budget->used(), 0u);

  Exchange whole({.budget = budget, .kept_bytes = 4}, nullptr);
  whole.Send(200, "text/plain", "abcd", {});
  EXPECT_EQ(budget->used(), 4u);
  EXPECT_EQ(Kept(whole, /*truncated=*/false), "abcd");
  EXPECT_EQ(budget->used(), 0u);
}

TEST(ErrorBodyTest, HasBothShapes) {
  const auto body = nlohmann::json::parse(ErrorBody(400, "bad \xff", "a_code", "prompt"));
  const auto& error = body["error"];
  EXPECT_EQ(error["message"], "bad \xEF\xBF\xBD");
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["param"], "prompt");
  EXPECT_EQ(error["code"], "a_code");
  EXPECT_EQ(body["object"], "error");
  EXPECT_EQ(body["message"], error["message"]);
  EXPECT_EQ(body["code"], 400);
}

TEST(SseTest, EveryLineIsData) {
  EXPECT_EQ(SseEvent("a"), "data: a\n\n");
  EXPECT_EQ(SseEvent(""), "data: \n\n");
  EXPECT_EQ(SseEvent("a\nb\r\nc\rd"), "data: a\ndata: b\ndata: c\ndata: d\n\n");
  EXPECT_EQ(SseComment("a\nb"), ": a b\n\n");
}

TEST(ResponseHeadTest, ValuesCannotAddHeaders) {
  const std::string head = Serialize({.status = 200, .extra = {{"X", "a\r\nSet-Cookie: b"}}});
  EXPECT_THAT(head, ::testing::StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(head, ::testing::HasSubstr("X: a  Set-Cookie: b\r\n"));
}

}  // namespace
}  // namespace switchyard::http
