#include "server/service_manager.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "core/log.h"

namespace switchyard {
namespace {

// Reads a variable and removes it. Empty: it is not set.
std::string Take(const char* name) {
  const char* const value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  unsetenv(name);
  return text;
}

// Value of a variable that holds a positive number; absent if the variable is not set.
std::optional<int64_t> TakeNumber(const char* name) {
  const std::string text = Take(name);
  if (text.empty()) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value <= 0)
    throw Invalid("environment variable {}={}: want a positive number", name, text);
  return value;
}

}  // namespace

ServiceManager::ServiceManager() {
  const std::string name = Take("NOTIFY_SOCKET");
  const std::optional<int64_t> usec = TakeNumber("WATCHDOG_USEC");
  const std::optional<int64_t> pid = TakeNumber("WATCHDOG_PID");
  if (name.empty()) return;
  if ((name[0] != '/' && name[0] != '@') || name.size() >= sizeof(sockaddr_un::sun_path))
    throw Invalid("environment variable NOTIFY_SOCKET={}: want an absolute path, or @NAME", name);
  address_ = name;
  if (name[0] == '@') address_[0] = '\0';
  // A parent process may have left its own variables in the environment. Its watchdog does not
  // supervise this process.
  if (usec && (!pid || *pid == getpid())) watchdog_ = std::chrono::microseconds(*usec);
  socket_ = FileDescriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const timeval limit{.tv_sec = 2};  // a manager that does not read must not block the server
  setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

void ServiceManager::Status(std::string_view text) {
  if (text == status_) return;
  status_ = text;
  Send(fmt::format("STATUS={}", text));
}

void ServiceManager::Ready(std::string_view status) {
  status_ = status;
  Send(fmt::format("READY=1\nSTATUS={}", status));
}

void ServiceManager::Alive() {
  if (!watchdog_) return;
  const auto now = std::chrono::steady_clock::now();
  if (alive_ && now - *alive_ < *watchdog_ / 4) return;
  alive_ = now;
  Send("WATCHDOG=1");
}

void ServiceManager::Stopping() {
  status_ = "finishing open requests";
  Send(fmt::format("STOPPING=1\nSTATUS={}", status_));
}

void ServiceManager::Send(std::string_view lines) {
  if (address_.empty()) return;
  sockaddr_un to{.sun_family = AF_UNIX};
  std::memcpy(to.sun_path, address_.data(), address_.size());
  // The length excludes the terminating zero byte of a path, because the names of abstract sockets
  // have none.
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  ssize_t sent = -1;
  do {
    sent = sendto(socket_.get(), lines.data(), lines.size(), MSG_NOSIGNAL,
                  reinterpret_cast<const sockaddr*>(&to), length);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0 || failed_) return;
  failed_ = true;
  LOG_WARNING("the service manager cannot be notified (NOTIFY_SOCKET): {}", std::strerror(errno));
}

}  // namespace switchyard
