#include "comm/net/tcp.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "core/error.h"

namespace switchyard {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPollInterval(100);       // between two polls of the stop condition
constexpr milliseconds kReconnectInterval(100);  // between two attempts to connect
constexpr int kBacklog = 512;
// The loss of a peer's host is detected after 19 s: 10 s without data, then 3 probes, 3 s each.
constexpr int kProbeAfterSeconds = 10, kProbeEverySeconds = 3, kProbes = 3;
constexpr size_t kMaxIovecs = 1024;  // limit of one system call (IOV_MAX)

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

struct Resolved {
  AddressList list{nullptr, &freeaddrinfo};
  int error = 0;  // result of getaddrinfo; 0: no error
};

Resolved Resolve(const HostPort& where) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &list);
  return {AddressList(error == 0 ? list : nullptr, &freeaddrinfo), error};
}

HostPort ToHostPort(const sockaddr_storage& address) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const socklen_t length =
      address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host.data(), host.size(),
                  port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {"unknown", 0};
  }
  return {host.data(), std::atoi(port.data())};
}

HostPort EndOf(int fd, decltype(&getsockname) which) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (which(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {"unknown", 0};
  return ToHostPort(address);
}

void Set(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof value);
}

// Waits for an event on the socket, for at most kPollInterval. Returns kDone also if no event
// occurred in this time; the caller then retries.
IoResult Await(int fd, short event, const IoLimit& limit) {
  const auto left = std::chrono::ceil<milliseconds>(limit.until - steady_clock::now());
  if (left.count() <= 0) return IoResult::kTimeout;
  if (limit.stop && limit.stop()) return IoResult::kStopped;
  pollfd item{fd, event, 0};
  poll(&item, 1, static_cast<int>(std::min(left, kPollInterval).count()));
  return IoResult::kDone;
}

// Returns a connected socket in blocking mode; none if the address does not accept within the
// limit.
FileDescriptor ConnectOnce(const addrinfo& address, const IoLimit& limit) {
  FileDescriptor fd(
      socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
  if (fd.get() < 0) throw Resource("cannot open a socket: {}", std::strerror(errno));
  int error = connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd item{fd.get(), POLLOUT, 0};
    while (poll(&item, 1, 0) <= 0) {
      if (Await(fd.get(), POLLOUT, limit) != IoResult::kDone) return {};
    }
    socklen_t length = sizeof error;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (error != 0) return {};
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
  return fd;
}

bool Unlimited(const IoLimit& limit) {
  return limit.until == steady_clock::time_point::max() && !limit.stop;
}

}  // namespace

HostPort HostPort::Parse(std::string_view what, std::string_view text) {
  const auto refuse = [&] {
    return Invalid("{} '{}': want HOST:PORT, such as 10.0.0.1:5000", what, text);
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) throw refuse();
  std::string_view host = text.substr(0, colon), digits = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    throw refuse();
  }
  int port = 0;
  const auto end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, port);
  if (host.empty() || parsed.ec != std::errc() || parsed.ptr != end || port < 0 || port > 65535) {
    throw refuse();
  }
  return {std::string(host), port};
}

std::string HostPort::Text() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return is_v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

IoLimit IoLimit::After(milliseconds timeout, std::function<bool()> stop) {
  return {steady_clock::now() + timeout, std::move(stop)};
}

TcpStream::TcpStream(FileDescriptor socket) : socket_(std::move(socket)) {
  const int fd = socket_.get();
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);  // flags are small and latency-critical
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kProbeAfterSeconds);
  Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeEverySeconds);
  Set(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

std::optional<TcpStream> TcpStream::Connect(const HostPort& peer, const IoLimit& limit) {
  for (;;) {
    const Resolved resolved = Resolve(peer);
    for (const addrinfo* entry = resolved.list.get(); entry != nullptr; entry = entry->ai_next) {
      FileDescriptor fd = ConnectOnce(*entry, limit);
      if (fd.get() >= 0) return TcpStream(std::move(fd));
    }
    if (limit.stop && limit.stop()) return std::nullopt;
    if (steady_clock::now() >= limit.until) {
      // A name may be resolvable only once its host is up, as in Kubernetes.
      if (resolved.error != 0) throw Invalid("{}: {}", peer.Text(), gai_strerror(resolved.error));
      return std::nullopt;
    }
    std::this_thread::sleep_for(kReconnectInterval);
  }
}

// Transfers all bytes of the parts by repeated calls of `step`, each of which transfers some.
// Blocks in `step` only if there is no limit.
template <typename Step>
IoResult TcpStream::Move(std::span<iovec> parts, const IoLimit& limit, short event, Step step) {
  const int flags = Unlimited(limit) ? 0 : MSG_DONTWAIT;
  while (!parts.empty()) {
    if (parts.front().iov_len == 0) {
      parts = parts.subspan(1);
      continue;
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = std::min(parts.size(), kMaxIovecs);
    ssize_t moved = step(socket_.get(), &message, flags | MSG_NOSIGNAL);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      const IoResult waited = Await(socket_.get(), event, limit);
      if (waited != IoResult::kDone) return waited;
      continue;
    }
    if (moved <= 0) return IoResult::kClosed;
    for (auto left = static_cast<size_t>(moved); left > 0;) {
      iovec& part = parts.front();
      const size_t n = std::min(left, part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + n;
      part.iov_len -= n;
      left -= n;
      if (part.iov_len == 0) parts = parts.subspan(1);
    }
  }
  return IoResult::kDone;
}

IoResult TcpStream::Send(std::span<iovec> parts, const IoLimit& limit) {
  return Move(parts, limit, POLLOUT,
              [](int fd, msghdr* message, int flags) { return sendmsg(fd, message, flags); });
}

IoResult TcpStream::Receive(std::span<iovec> parts, const IoLimit& limit) {
  return Move(parts, limit, POLLIN,
              [](int fd, msghdr* message, int flags) { return recvmsg(fd, message, flags); });
}

IoResult TcpStream::Receive(void* bytes, size_t size, const IoLimit& limit) {
  iovec part{bytes, size};
  return Receive(std::span(&part, 1), limit);
}

IoResult TcpStream::ReceiveArrived(std::span<std::byte>& left) {
  while (!left.empty()) {
    const ssize_t n = recv(socket_.get(), left.data(), left.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return IoResult::kTimeout;
    if (n <= 0) return IoResult::kClosed;
    left = left.subspan(static_cast<size_t>(n));
  }
  return IoResult::kDone;
}

void TcpStream::EndSending() { shutdown(socket_.get(), SHUT_WR); }
void TcpStream::Shutdown() { shutdown(socket_.get(), SHUT_RDWR); }

std::string TcpStream::LocalHost() const { return EndOf(socket_.get(), getsockname).host; }
std::string TcpStream::PeerHost() const { return EndOf(socket_.get(), getpeername).host; }

TcpListener TcpListener::Bind(const HostPort& local) {
  const Resolved resolved = Resolve(local);
  if (resolved.error != 0) throw Invalid("{}: {}", local.Text(), gai_strerror(resolved.error));
  const addrinfo& address = *resolved.list;
  FileDescriptor fd(
      ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
  if (fd.get() < 0) throw Resource("cannot open a socket: {}", std::strerror(errno));
  Set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // a server that just exited may have held the port
  if (bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0 || listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    if (error == EADDRNOTAVAIL) throw Invalid("{}: not an address of this host", local.Text());
    throw Resource("cannot listen at {}: {}", local.Text(), std::strerror(error));
  }
  return TcpListener(std::move(fd));
}

HostPort TcpListener::address() const { return EndOf(socket_.get(), getsockname); }

std::optional<TcpStream> TcpListener::AcceptArrived(bool* exhausted) {
  if (exhausted != nullptr) *exhausted = false;
  for (;;) {
    FileDescriptor fd(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.get() >= 0) return TcpStream(std::move(fd));
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (exhausted != nullptr) *exhausted = errno != EAGAIN && errno != EWOULDBLOCK;
    return std::nullopt;
  }
}

std::optional<TcpStream> TcpListener::Accept(const IoLimit& limit) {
  for (;;) {
    bool exhausted = false;
    if (auto stream = AcceptArrived(&exhausted)) return stream;
    if (exhausted) std::this_thread::sleep_for(kPollInterval);
    if (Await(socket_.get(), POLLIN, limit) != IoResult::kDone) return std::nullopt;
  }
}

}  // namespace switchyard
