#include "comm/net/tcp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace switchyard {
namespace {

using std::chrono::milliseconds;

TEST(HostPortTest, IsWrittenAsInAUrl) {
  const HostPort v4 = HostPort::Parse("--dist-init-addr", "node-0.cluster:5000");
  EXPECT_EQ(v4.host, "node-0.cluster");
  EXPECT_EQ(v4.port, 5000);
  const HostPort v6 = HostPort::Parse("--dist-init-addr", "[fd00::1]:80");
  EXPECT_EQ(v6.host, "fd00::1");
  EXPECT_EQ(v6.Text(), "[fd00::1]:80");
}

TEST(HostPortTest, RefusesTheRestByName) {
  for (const char* text :
       {"", "host", "host:", ":80", "host:x", "host:80x", "host:65536", "host:-1", "fd00::1:80"}) {
    try {
      HostPort::Parse("--dist-init-addr", text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith(fmt::format("--dist-init-addr '{}'", text)));
    }
  }
}

TEST(TcpTest, AMissingListenerIsATimeoutAndAnUnknownAddressAnError) {
  HostPort nobody;
  {
    const TcpListener gone = TcpListener::Bind({"127.0.0.1", 0});
    nobody = gone.address();
  }
  EXPECT_FALSE(TcpStream::Connect(nobody, IoLimit::After(milliseconds(50))));
  EXPECT_THROW(TcpListener::Bind({"192.0.2.1", 0}), Error);  // reserved address (RFC 5737)
  const TcpListener first = TcpListener::Bind({"127.0.0.1", 0});
  EXPECT_THROW(TcpListener::Bind(first.address()), Error);
}

TEST(TcpTest, PartsArriveInOrderAndTheEndIsSeen) {
  TcpListener listener = TcpListener::Bind({"127.0.0.1", 0});
  auto one = TcpStream::Connect(listener.address(), IoLimit::After(milliseconds(10'000)));
  auto other = listener.Accept(IoLimit::After(milliseconds(10'000)));
  ASSERT_TRUE(one && other);
  char ab[] = "ab", cde[] = "cde", seen[6] = {};
  iovec parts[] = {{ab, 2}, {nullptr, 0}, {cde, 3}};
  EXPECT_EQ(one->Send(parts), IoResult::kDone);
  EXPECT_EQ(other->Receive(seen, 5), IoResult::kDone);
  EXPECT_STREQ(seen, "abcde");
  EXPECT_EQ(other->Receive(seen, 1, IoLimit::After(milliseconds(20))), IoResult::kTimeout);
  EXPECT_EQ(other->Receive(seen, 1, {.stop = [] { return true; }}), IoResult::kStopped);
  one->EndSending();
  EXPECT_EQ(other->Receive(seen, 1), IoResult::kClosed);
}

}  // namespace
}  // namespace switchyard
