#include "comm/host/control_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "core/error.h"

namespace switchyard {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong(20'000);

TEST(ControlSocketTest, CarriesBytesBothWaysInAnyOrderOfConnection) {
  const std::string endpoint = ControlSocket::UniqueEndpoint();
  for (const bool binder_first : {true, false}) {
    auto first = binder_first ? ControlSocket::Bind(endpoint) : ControlSocket::Connect(endpoint);
    first.Send("sent before the peer was there");
    auto second = binder_first ? ControlSocket::Connect(endpoint) : ControlSocket::Bind(endpoint);
    EXPECT_EQ(second.Receive(kLong), "sent before the peer was there");
    const std::string bytes("\0\xff bytes \n", 10);
    second.Send(bytes);
    second.Send("");
    EXPECT_EQ(first.Receive(kLong), bytes);
    EXPECT_EQ(first.Receive(kLong), "");
    EXPECT_EQ(first.Receive(milliseconds(0)), std::nullopt);
    EXPECT_EQ(first.Receive(milliseconds(5)), std::nullopt);
  }
}

// Both ends send and receive at the same time, each from two threads: nothing is lost or reordered.
TEST(ControlSocketTest, ManyMessagesKeepTheirOrder) {
  constexpr int kMessages = 100'000;
  const std::string endpoint = ControlSocket::UniqueEndpoint();
  auto front = ControlSocket::Bind(endpoint);
  auto leader = ControlSocket::Connect(endpoint);
  const auto send = [](ControlSocket& socket) {
    for (int i = 0; i < kMessages; ++i) socket.Send(std::to_string(i) + std::string(i % 100, '.'));
  };
  const auto receive = [](ControlSocket& socket) {
    for (int i = 0; i < kMessages; ++i) {
      const auto message = socket.Receive(kLong);
      ASSERT_TRUE(message.has_value());
      ASSERT_EQ(*message, std::to_string(i) + std::string(i % 100, '.'));
    }
  };
  std::jthread a(send, std::ref(front)), b(receive, std::ref(front));
  std::jthread c(send, std::ref(leader)), d(receive, std::ref(leader));
}

TEST(ControlSocketTest, SendDoesNotWaitForAPeerThatIsBusy) {
  const std::string endpoint = ControlSocket::UniqueEndpoint();
  auto front = ControlSocket::Bind(endpoint);
  auto leader = ControlSocket::Connect(endpoint);
  const std::string page(1 << 16, 'p');
  for (int i = 0; i < 500; ++i) front.Send(page);  // 32 MiB: more than any socket's buffer
  for (int i = 0; i < 500; ++i) ASSERT_EQ(leader.Receive(kLong), page);
}

TEST(ControlSocketTest, ThePollFdWakesForAMessage) {
  const std::string endpoint = ControlSocket::UniqueEndpoint();
  auto front = ControlSocket::Bind(endpoint);
  auto leader = ControlSocket::Connect(endpoint);
  for (int i = 0; i < 20; ++i) {
    std::optional<std::string> message;
    leader.Send(std::to_string(i));
    // Edge-triggered: polls first, sleeps only if there is no message.
    while (!(message = front.Receive(milliseconds(0)))) {
      pollfd fd{front.PollFd(), POLLIN, 0};
      ASSERT_EQ(poll(&fd, 1, static_cast<int>(kLong.count())), 1);
    }
    EXPECT_EQ(*message, std::to_string(i));
  }
}

TEST(ControlSocketTest, EndpointsDifferAndLeaveNoFile) {
  const std::string a = ControlSocket::UniqueEndpoint();
  EXPECT_NE(a, ControlSocket::UniqueEndpoint());
  EXPECT_TRUE(a.starts_with("ipc://@")) << "a name outside the file system";
}

template <typename Body>
ErrorKind KindOf(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::kInvalid;
}

TEST(ControlSocketTest, RefusesUsedAndInvalidNames) {
  const std::string endpoint = ControlSocket::UniqueEndpoint();
  const auto front = ControlSocket::Bind(endpoint);
  EXPECT_EQ(KindOf([&] { ControlSocket::Bind(endpoint); }), ErrorKind::kResource);
  EXPECT_EQ(KindOf([] { ControlSocket::Connect("tcp://somewhere:1"); }), ErrorKind::kInvalid);
  EXPECT_EQ(KindOf([] { ControlSocket::Connect(""); }), ErrorKind::kInvalid);
}

}  // namespace
}  // namespace switchyard
