// The files of the page, their access, and the feed over HTTP.
#include "server/page/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/json_body.h"
#include "server/front/test_service.h"
#include "server/http/test_client.h"
#include "server/page/assets.h"

namespace switchyard::page {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A server with the page and without ranks.
struct PageServer {
  explicit PageServer(http::ServerOptions options = {}, Feed::Options feed_options = {})
      : server(std::move(options)) {
    world.service.ready = false;
    feed = Register(server, world.service, feed_options);
    server.Start();
  }
  ~PageServer() { feed->Stop(); }

  // `has_body`: false for responses without a body, such as 304.
  http::TestResponse Ask(const std::string& method, const std::string& path,
                         const std::string& headers = "", bool has_body = true) const {
    http::TestClient client(server.port());
    client.Send(method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + headers + "\r\n");
    return client.Read(method == "HEAD" || !has_body).value_or(http::TestResponse{});
  }

  TestService world{"qwen3_moe"};
  std::shared_ptr<Feed> feed;
  http::Server server;
};

http::ServerOptions WithKey() {
  http::ServerOptions options;
  options.api_keys = {"secret"};
  for (const std::string& path : Paths()) options.paths_without_key.push_back(path);
  return options;
}

TEST(PageTest, ServesEachFileWithItsType) {
  const PageServer page;
  size_t bytes = 0;
  for (const Asset& asset : Assets()) {
    const std::string path = asset.name == "index.html" ? "/" : "/page/" + std::string(asset.name);
    const http::TestResponse got = page.Ask("GET", path);
    EXPECT_EQ(got.status, 200) << path;
    EXPECT_EQ(got.body, asset.text);
    EXPECT_EQ(got.Header("Content-Type"), asset.content_type);
    EXPECT_THAT(got.Header("Content-Security-Policy"), HasSubstr("script-src 'self'"));
    EXPECT_THAT(got.Header("Content-Security-Policy"), Not(HasSubstr("unsafe")));
    bytes += asset.text.size();
  }
  EXPECT_GT(bytes, 10'000u);
  EXPECT_LT(bytes, 300'000u);
  EXPECT_EQ(page.Ask("GET", "/").Header("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.Ask("GET", "/page/page.js").Header("Content-Type"),
            "text/javascript; charset=utf-8");
}

TEST(PageTest, AnswersHeadAndConditionalRequests) {
  const PageServer page;
  const http::TestResponse head = page.Ask("HEAD", "/page/page.css");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
  const std::string etag = head.Header("ETag");
  const std::string known = "If-None-Match: " + etag + "\r\n";
  EXPECT_EQ(page.Ask("GET", "/page/page.css", known, /*has_body=*/false).status, 304);
  EXPECT_EQ(page.Ask("GET", "/page/page.css", "If-None-Match: \"other\"\r\n").status, 200);
  EXPECT_EQ(page.Ask("HEAD", "/dashboard/events").Header("Content-Type"), "text/event-stream");
  EXPECT_EQ(page.feed->snapshots(), 0);
}

TEST(PageTest, RefusesOtherPathsAndMethods) {
  const PageServer page;
  EXPECT_EQ(page.Ask("GET", "/page/").status, 404);
  EXPECT_EQ(page.Ask("GET", "/page/none.js").status, 404);
  EXPECT_EQ(page.Ask("GET", "/page/index.html").status, 404);
  EXPECT_EQ(page.Ask("POST", "/").status, 405);
}

TEST(PageTest, LoadsNothingFromOtherHosts) {
  for (const Asset& asset : Assets()) {
    if (asset.name.ends_with(".svg")) continue;  // the namespace of SVG
    for (const char* host : {"src=\"http", "href=\"http", "url(", "//cdn", "import(\"http"})
      EXPECT_THAT(std::string(asset.text), Not(HasSubstr(host))) << asset.name;
    for (const char* unsafe :
         {"innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "onclick=\"", " style=\""})
      EXPECT_THAT(std::string(asset.text), Not(HasSubstr(unsafe))) << asset.name;
  }
}

TEST(PageTest, OnlyTheDataNeedsAKey) {
  const PageServer page(WithKey());
  EXPECT_EQ(page.Ask("GET", "/").status, 200);
  EXPECT_EQ(page.Ask("GET", "/page/page.js").status, 200);
  EXPECT_EQ(page.Ask("GET", "/dashboard/events").status, 401);
  EXPECT_EQ(page.Ask("HEAD", "/dashboard/events", "Authorization: Bearer wrong\r\n").status, 401);
  EXPECT_EQ(page.Ask("HEAD", "/dashboard/events", "Authorization: Bearer secret\r\n").status, 200);
}

// Reads one event of a stream whose head has been read.
Json ReadEvent(http::TestClient& client) {
  const std::string chunk = client.ReadChunk().value_or("");
  EXPECT_TRUE(chunk.starts_with("data: {")) << chunk.substr(0, 80);
  return Json::parse(chunk.substr(6));
}

// Reads the head of a stream.
int ReadHead(http::TestClient& client) {
  const std::string status = client.ReadLine().value_or("HTTP/1.1 000");
  while (!client.ReadLine().value_or("").empty()) {
  }
  return std::atoi(status.c_str() + 9);
}

TEST(PageTest, AllListenersGetTheSameSnapshots) {
  const PageServer page({}, {.interval = std::chrono::milliseconds(20), .max_listeners = 2});
  http::TestClient one(page.server.port()), two(page.server.port());
  for (http::TestClient* client : {&one, &two}) {
    client->Get("/dashboard/events");
    EXPECT_EQ(ReadHead(*client), 200);
    const Json snapshot = ReadEvent(*client);
    EXPECT_EQ(snapshot["state"], "starting");
    EXPECT_EQ(snapshot["model"]["generates"], true);
    EXPECT_EQ(snapshot["experts"], nullptr);
  }
  EXPECT_EQ(page.Ask("GET", "/dashboard/events").status, 503);
  one.Close();
  while (page.feed->listeners() > 1) ReadEvent(two);  // until the server has detected it
  http::TestClient three(page.server.port());
  three.Get("/dashboard/events");
  EXPECT_EQ(ReadHead(three), 200);
  page.feed->Stop();
  while (!two.ReadChunk().value_or("").empty()) {
  }
  EXPECT_EQ(page.Ask("GET", "/dashboard/events").status, 503);
}

}  // namespace
}  // namespace switchyard::page
