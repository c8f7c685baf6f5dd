#include <gtest/gtest.h>

#include "server/http/error_body.h"

namespace switchyard::http {
namespace {

const RootNames kRoots = {"models", "home", "dev"};

std::string Hide(std::string_view message) { return HidePaths(message, kRoots); }

TEST(HidePathsTest, AbsolutePathsAreReducedToTheirLastComponent) {
  EXPECT_EQ(Hide("/models/x/config.json: bad"), "config.json: bad");
  EXPECT_EQ(Hide("cannot open /home/me/a.bin"), "cannot open a.bin");
  EXPECT_EQ(Hide("in /models/x/, line 3"), "in x, line 3");
  EXPECT_EQ(Hide("(\"/models/a/b\", '/home//me/c'; `/dev/shm/d`)"), "(\"b\", 'c'; `d`)");
  EXPECT_EQ(Hide("--load=/models/a/b:/home/me/c"), "--load=b:c");
  EXPECT_EQ(Hide("open:/models/a/b file:///home/me/c //home/me/d"), "open:b file:c d");
  EXPECT_EQ(Hide("/models/ä/ö.json\n/home/x/y"), "ö.json\ny");
}

TEST(HidePathsTest, RoutesAndUrlsStay) {
  for (const char* text : {"use POST /v1/chat/completions", "/v1/models", "https://home/me/x",
                           "http://a.b/models/x/y", "/eplb/rebalance", "/generate", "/health"})
    EXPECT_EQ(Hide(text), text);
  const RootNames names = ReadRootNames();
  EXPECT_FALSE(names.contains("v1"));
  EXPECT_FALSE(names.contains("eplb"));
  EXPECT_TRUE(names.contains("usr"));
  EXPECT_EQ(HidePaths("use /v1/models, not /usr/lib/x.so"), "use /v1/models, not x.so");
}

TEST(HidePathsTest, TextsOfRequestsStay) {
  for (const char* text :
       {"", "/", "//", "and/or", "1/2/2024", "</home/me>", "models/x/config.json", "./models/x/y",
        "../home/me/x", "a regex /ab/c/", "Qwen/Qwen3-30B-A3B", "/models", "/models/",
        "~/home/me/x", "org/models/x"})
    EXPECT_EQ(Hide(text), text);
}

TEST(HidePathsTest, HiddenTextStaysTheSame) {
  const std::string once = Hide("/models/x/config.json: want /v1/models (/home/me/a/b)");
  EXPECT_EQ(once, "config.json: want /v1/models (b)");
  EXPECT_EQ(Hide(once), once);
}

}  // namespace
}  // namespace switchyard::http
