#include <gtest/gtest.h>

#include "chat/http_client.h"
#include "core/error.h"

namespace switchyard::chat {
namespace {

TEST(ServerUrlTest, ReadsHostPortAndPrefix) {
  struct Case {
    const char* text;
    const char* shown;
  };
  for (const Case& c : {Case{"http://127.0.0.1:30000", "http://127.0.0.1:30000"},
                        {"http://127.0.0.1:30000/", "http://127.0.0.1:30000"},
                        {"http://127.0.0.1:30000/v1", "http://127.0.0.1:30000"},
                        {"http://127.0.0.1:30000/v1/", "http://127.0.0.1:30000"},
                        {"localhost:8000", "http://localhost:8000"},
                        {"localhost", "http://localhost:80"},
                        {"https://example.org/api/v1", "https://example.org:443/api"},
                        {"http://[::1]:30000", "http://[::1]:30000"},
                        {"unix:/run/a/socket", "unix:/run/a/socket"},
                        {"unix:///run/a/socket", "unix:/run/a/socket"}})
    EXPECT_EQ(ParseServerUrl(c.text).Text(), c.shown) << c.text;
  EXPECT_TRUE(ParseServerUrl("https://example.org").tls);
  EXPECT_EQ(ParseServerUrl("http://[::1]:30000").host, "::1");
  EXPECT_EQ(ParseServerUrl("unix:/run/a/socket").Host(), "localhost");
}

TEST(ServerUrlTest, RefusesOtherTexts) {
  for (const char* text :
       {"", "http://", "ftp://example.org", "http://a:0", "http://a:70000", "http://a:x",
        "http://a:", "http://::1:30000", "http://[::1", "http://[::1]x", "http://key@a",
        "http://a/?q=1", "http://a/#b", "unix:", "http://a\r\nX: y", "http://a b"})
    EXPECT_THROW(ParseServerUrl(text), Error) << text;
}

}  // namespace
}  // namespace switchyard::chat
