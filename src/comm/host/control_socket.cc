#include "comm/host/control_socket.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/error.h"

#ifdef __SANITIZE_THREAD__
// libzmq is not instrumented for the thread sanitizer, which sees only some of its accesses and
// locks. So reports from inside the library are suppressed.
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libzmq.so\n"; }
#endif

namespace switchyard {
namespace {

constexpr std::string_view kHead = "ipc://@switchyard-";  // @: an abstract socket name, no file
constexpr int kLingerMs = 1000;   // maximum time to send the last messages on close
constexpr int kReconnectMs = 10;  // time between two attempts to connect
constexpr size_t kTokenChars = 32;

[[noreturn]] void Fail(const char* what, const std::string& endpoint) {
  throw Resource("control socket {}: cannot {}: {}", endpoint, what, zmq_strerror(zmq_errno()));
}

// The two names in an endpoint "ipc://@switchyard-<token>-<token>", one for each side's PULL
// socket. All users of the host can see bound names. One name does not reveal the other, so no
// other process can bind the second name first.
struct Names {
  std::string binder, connector;
};

Names ParseEndpoint(const std::string& endpoint) {
  const std::string head(kHead);
  if (endpoint.size() != head.size() + 2 * kTokenChars + 1 || !endpoint.starts_with(head)) {
    throw Invalid("'{}' is not an endpoint of a control socket", endpoint);
  }
  return {head + endpoint.substr(head.size(), kTokenChars),
          head + endpoint.substr(head.size() + kTokenChars + 1)};
}

}  // namespace

// Each direction is a separate stream. The receiver binds a PULL socket. The sender connects a PUSH
// socket, which queues messages even before the peer has started. So each of the two ZeroMQ sockets
// is used by one thread, as ZeroMQ requires.
struct ControlSocket::Impl {
  void* context = zmq_ctx_new();
  void* push = nullptr;
  void* pull = nullptr;

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ~Impl() {
    if (push != nullptr) zmq_close(push);
    if (pull != nullptr) zmq_close(pull);
    zmq_ctx_term(context);
  }

  void* Open(int type, const std::string& endpoint) {
    void* socket = zmq_socket(context, type);
    if (socket == nullptr) Fail("open", endpoint);
    const int no_limit = 0;
    zmq_setsockopt(socket, ZMQ_SNDHWM, &no_limit, sizeof no_limit);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &no_limit, sizeof no_limit);
    zmq_setsockopt(socket, ZMQ_LINGER, &kLingerMs, sizeof kLingerMs);
    zmq_setsockopt(socket, ZMQ_RECONNECT_IVL, &kReconnectMs, sizeof kReconnectMs);
    return socket;
  }

  void ListenAt(const std::string& endpoint) {
    pull = Open(ZMQ_PULL, endpoint);
    const uid_t self = geteuid();  // other users see the name but cannot connect
    if (zmq_setsockopt(pull, ZMQ_IPC_FILTER_UID, &self, sizeof self) != 0) {
      Fail("restrict it to this user", endpoint);
    }
    if (zmq_bind(pull, endpoint.c_str()) != 0) Fail("bind", endpoint);
  }

  void SendTo(const std::string& endpoint) {
    push = Open(ZMQ_PUSH, endpoint);
    if (zmq_connect(push, endpoint.c_str()) != 0) Fail("connect", endpoint);
  }

  static std::unique_ptr<Impl> Between(const std::string& mine, const std::string& peer) {
    auto impl = std::make_unique<Impl>();
    impl->ListenAt(mine);
    impl->SendTo(peer);
    return impl;
  }
};

ControlSocket::ControlSocket(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlSocket::ControlSocket(ControlSocket&&) noexcept = default;
ControlSocket& ControlSocket::operator=(ControlSocket&&) noexcept = default;
ControlSocket::~ControlSocket() = default;

std::string ControlSocket::UniqueEndpoint() {
  std::array<uint64_t, 4> random;
  CHECK_EQ(getrandom(random.data(), sizeof random, 0), static_cast<ssize_t>(sizeof random));
  return fmt::format("{}{:016x}{:016x}-{:016x}{:016x}", kHead, random[0], random[1], random[2],
                     random[3]);
}

ControlSocket ControlSocket::Bind(const std::string& endpoint) {
  const Names names = ParseEndpoint(endpoint);
  return ControlSocket(Impl::Between(names.binder, names.connector));
}

ControlSocket ControlSocket::Connect(const std::string& endpoint) {
  const Names names = ParseEndpoint(endpoint);
  return ControlSocket(Impl::Between(names.connector, names.binder));
}

void ControlSocket::Send(std::string message) {
  while (zmq_send(impl_->push, message.data(), message.size(), ZMQ_DONTWAIT) < 0) {
    if (zmq_errno() != EINTR) {
      throw Error(ErrorKind::kPeer, fmt::format("control socket: cannot send {} bytes: {}",
                                                message.size(), zmq_strerror(zmq_errno())));
    }
  }
}

void ControlSocket::DiscardUnsent() {
  const int no_time = 0;
  zmq_setsockopt(impl_->push, ZMQ_LINGER, &no_time, sizeof no_time);
}

std::optional<std::string> ControlSocket::Receive(std::chrono::milliseconds timeout, int wake_fd) {
  using std::chrono::steady_clock;
  const auto start = steady_clock::now();
  auto left = timeout;
  for (;;) {
    std::array<zmq_pollitem_t, 2> items{
        {{impl_->pull, 0, ZMQ_POLLIN, 0}, {nullptr, wake_fd, ZMQ_POLLIN, 0}}};
    const auto wait = std::clamp<int64_t>(left.count(), 0, INT_MAX);
    if (zmq_poll(items.data(), wake_fd < 0 ? 1 : 2, static_cast<long>(wait)) > 0) {
      if (items[0].revents != 0) break;
      return std::nullopt;
    }
    // The poll may have ended early because of a signal.
    left = timeout - std::chrono::ceil<std::chrono::milliseconds>(steady_clock::now() - start);
    if (left.count() <= 0) return std::nullopt;
  }
  zmq_msg_t message;
  zmq_msg_init(&message);
  while (zmq_msg_recv(&message, impl_->pull, ZMQ_DONTWAIT) < 0) CHECK_EQ(zmq_errno(), EINTR);
  std::string bytes(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
  zmq_msg_close(&message);
  return bytes;
}

int ControlSocket::PollFd() const {
  int fd = -1;
  size_t size = sizeof fd;
  CHECK_EQ(zmq_getsockopt(impl_->pull, ZMQ_FD, &fd, &size), 0);
  return fd;
}

}  // namespace switchyard
