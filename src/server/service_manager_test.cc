#include "server/service_manager.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/temporary_directory.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A service manager's socket at `address`, whose first character is '@' for an abstract socket.
class Manager {
 public:
  explicit Manager(std::string address)
      : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    setenv("NOTIFY_SOCKET", address.c_str(), 1);
    if (address[0] == '@') address[0] = '\0';
    sockaddr_un name{.sun_family = AF_UNIX};
    std::memcpy(name.sun_path, address.data(), address.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
    if (bind(socket_.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0)
      throw Invalid("bind: {}", std::strerror(errno));
  }

  std::vector<std::string> Received() const {
    std::vector<std::string> all;
    std::array<char, 4096> buffer{};
    for (;;) {
      const ssize_t size = recv(socket_.get(), buffer.data(), buffer.size(), 0);
      if (size < 0) return all;
      all.emplace_back(buffer.data(), size);
    }
  }

 private:
  FileDescriptor socket_;
};

std::string AbstractName() { return fmt::format("@switchyard-notify-test-{}", getpid()); }

TEST(ServiceManagerTest, SendsTheStatesOfAServer) {
  const Manager manager(AbstractName());
  ServiceManager notify;
  notify.Status("loading weights: 10 %");
  notify.Status("loading weights: 10 %");
  notify.Ready("serving m");
  notify.Alive();  // there is no watchdog
  notify.Stopping();
  EXPECT_THAT(manager.Received(),
              ElementsAre("STATUS=loading weights: 10 %", "READY=1\nSTATUS=serving m",
                          "STOPPING=1\nSTATUS=finishing open requests"));
  EXPECT_EQ(std::getenv("NOTIFY_SOCKET"), nullptr);
}

TEST(ServiceManagerTest, AcceptsASocketFile) {
  const TemporaryDirectory directory;
  const std::string path = (directory.path() / "notify").string();
  const Manager manager(path);
  ServiceManager().Ready("x");
  EXPECT_THAT(manager.Received(), ElementsAre("READY=1\nSTATUS=x"));
}

TEST(ServiceManagerTest, TheWatchdogGetsAFewMessagesInEachInterval) {
  const Manager manager(AbstractName());
  setenv("WATCHDOG_USEC", "3600000000", 1);
  ServiceManager notify;
  for (int i = 0; i < 100; ++i) notify.Alive();
  EXPECT_THAT(manager.Received(), ElementsAre("WATCHDOG=1"));
  EXPECT_EQ(std::getenv("WATCHDOG_USEC"), nullptr);
}

TEST(ServiceManagerTest, IgnoresTheWatchdogOfAnotherProcess) {
  const Manager manager(AbstractName());
  setenv("WATCHDOG_USEC", "3600000000", 1);
  setenv("WATCHDOG_PID", "1", 1);
  ServiceManager().Alive();
  EXPECT_THAT(manager.Received(), IsEmpty());
}

TEST(ServiceManagerTest, WithoutASocketNothingIsSent) {
  unsetenv("NOTIFY_SOCKET");
  ServiceManager notify;
  notify.Status("x");
  notify.Ready("x");
  notify.Alive();
  notify.Stopping();
}

TEST(ServiceManagerTest, ALostManagerIsNoError) {
  setenv("NOTIFY_SOCKET", "/nonexistent/notify", 1);
  ServiceManager notify;
  notify.Ready("x");
  notify.Stopping();
}

TEST(ServiceManagerTest, InvalidVariablesAreNamed) {
  const auto error = [](const char* name, const std::string& value) -> std::string {
    setenv(name, value.c_str(), 1);
    try {
      const ServiceManager notify;
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(error("NOTIFY_SOCKET", "vsock:2:1"), HasSubstr("NOTIFY_SOCKET=vsock:2:1"));
  EXPECT_THAT(error("NOTIFY_SOCKET", "/" + std::string(200, 'x')), HasSubstr("NOTIFY_SOCKET=/"));
  EXPECT_THAT(error("WATCHDOG_USEC", "-5"), HasSubstr("WATCHDOG_USEC=-5"));
  EXPECT_THAT(error("WATCHDOG_USEC", "1s"), HasSubstr("WATCHDOG_USEC=1s"));
}

}  // namespace
}  // namespace switchyard
