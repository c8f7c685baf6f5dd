#include "server/http_setup.h"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

TEST(ServerUrlTest, HasSchemeHostAndPort) {
  HttpArgs args;
  EXPECT_EQ(ServerUrl(args, "0.0.0.0", 30000), "http://0.0.0.0:30000");
  EXPECT_EQ(ServerUrl(args, "::1", 80), "http://[::1]:80");
  args.ssl_certfile = "certificate.pem";
  EXPECT_EQ(ServerUrl(args, "yard.example", 8443), "https://yard.example:8443");
  args.uds = "/run/switchyard.sock";
  EXPECT_EQ(ServerUrl(args, "yard.example", 8443), "https://localhost");
}

}  // namespace
}  // namespace switchyard
