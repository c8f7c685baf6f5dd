#include "chat/connection.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace switchyard::chat {
namespace {

constexpr const char* kIsItRunning =
    "is a server running there? `switchyard serve --model-path DIR` starts one, and `switchyard "
    "chat --model-path DIR` needs none";

std::string TlsErrorText() {
  const unsigned long code = ERR_get_error();
  if (code == 0) return "the connection ended";
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : fmt::format("OpenSSL error {:#x}", code);
}

// Before a call of OpenSSL whose failure WaitForTls explains by the queue of errors and errno.
void ClearTlsError() {
  ERR_clear_error();
  errno = 0;
}

}  // namespace

void Connection::FreeTls::operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
void Connection::FreeTls::operator()(SSL* ssl) const { SSL_free(ssl); }

Connection::Connection(const ServerUrl& url, const ConnectionOptions& options, Signals& signals)
    : url_(url), options_(options), signals_(signals) {
  Connect();
  if (url_.tls) StartTls();
}

Connection::~Connection() = default;

void Connection::Fail(const std::string& why, const std::string& hint) const {
  throw Error(ErrorKind::kPeer, fmt::format("{}: {}", url_.Text(), why), hint);
}

void Connection::Wait(short events, std::chrono::milliseconds limit, const char* what) {
  if (signals_.Wait(socket_.get(), events, limit)) return;
  throw Error(ErrorKind::kTimeout, fmt::format("{}: {} took more than {} s", url_.Text(), what,
                                               static_cast<double>(limit.count()) / 1000));
}

bool Connection::TryConnect(int family, const void* address, size_t size, std::string* failure) {
  socket_ = FileDescriptor(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int error = socket_.get() < 0 ? errno : 0;
  if (error == 0 && connect(socket_.get(), static_cast<const sockaddr*>(address), size) != 0)
    error = errno;
  if (error == EINPROGRESS) {
    Wait(POLLOUT, options_.connect, "connecting");
    socklen_t length = sizeof error;
    getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (error != 0) *failure = std::strerror(error);
  return error == 0;
}

void Connection::Connect() {
  if (url_.unix_socket.empty()) return ConnectTcp();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (url_.unix_socket.size() >= sizeof address.sun_path)
    Fail("the path of the socket is too long");
  url_.unix_socket.copy(address.sun_path, url_.unix_socket.size());
  std::string failure;
  if (!TryConnect(AF_UNIX, &address, sizeof address, &failure)) Fail(failure, kIsItRunning);
}

void Connection::ConnectTcp() {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(url_.host.c_str(), std::to_string(url_.port).c_str(), &hints, &found);
  if (error != 0) Fail(gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  std::string failure = "the host has no address";
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    try {
      if (!TryConnect(a->ai_family, a->ai_addr, a->ai_addrlen, &failure)) continue;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kTimeout || a->ai_next == nullptr) throw;
      continue;
    }
    const int on = 1;  // a request is one small packet, which must not wait for others
    setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return;
  }
  Fail(failure, kIsItRunning);
}

void Connection::StartTls() {
  context_.reset(SSL_CTX_new(TLS_client_method()));
  if (!context_) Fail(TlsErrorText());
  SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION);
  SSL_CTX_set_default_verify_paths(context_.get());
  if (!options_.ca_file.empty() &&
      SSL_CTX_load_verify_file(context_.get(), options_.ca_file.c_str()) != 1)
    throw Invalid("--cacert {}: no certificate can be read from it: {}", options_.ca_file,
                  TlsErrorText());
  SSL_CTX_set_verify(context_.get(), options_.insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER,
                     nullptr);
  tls_.reset(SSL_new(context_.get()));
  if (!tls_ || SSL_set_fd(tls_.get(), socket_.get()) != 1) Fail(TlsErrorText());
  // An address is compared with the certificate's addresses, a name with its names (RFC 6125).
  unsigned char address[sizeof(in6_addr)];
  const bool numeric = inet_pton(AF_INET, url_.host.c_str(), address) == 1 ||
                       inet_pton(AF_INET6, url_.host.c_str(), address) == 1;
  const bool set =
      numeric ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls_.get()), url_.host.c_str()) == 1
              : SSL_set1_host(tls_.get(), url_.host.c_str()) == 1 &&
                    SSL_set_tlsext_host_name(tls_.get(), url_.host.c_str()) == 1;
  // Without a name, OpenSSL would accept certificates of all hosts.
  if (!set) Fail("the host cannot be compared with a certificate");
  while (true) {
    ClearTlsError();
    const int result = SSL_connect(tls_.get());
    if (result == 1) return;
    if (const long verified = SSL_get_verify_result(tls_.get());
        verified != X509_V_OK && !options_.insecure)
      Fail(fmt::format("the server's certificate: {}", X509_verify_cert_error_string(verified)),
           "--cacert FILE trusts a certificate, and --insecure any");
    if (!WaitForTls(result, "the TLS handshake"))
      Fail("the server ended the TLS handshake", "is it an HTTP server without TLS?");
  }
}

bool Connection::WaitForTls(int result, const char* what) {
  switch (SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      Wait(POLLIN, options_.silence, what);
      return true;
    case SSL_ERROR_WANT_WRITE:
      Wait(POLLOUT, options_.silence, what);
      return true;
    case SSL_ERROR_ZERO_RETURN:
      return false;
    case SSL_ERROR_SYSCALL:
      if (ERR_peek_error() == 0 && errno == 0) return false;
      Fail(errno != 0 ? std::strerror(errno) : TlsErrorText());
    default:
      Fail(fmt::format("TLS: {}", TlsErrorText()));
  }
}

void Connection::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    if (tls_) {
      ClearTlsError();
      const int sent = SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size()));
      if (sent > 0) {
        bytes.remove_prefix(sent);
      } else if (!WaitForTls(sent, "sending the request")) {
        Fail("the server closed the connection");
      }
      continue;
    }
    const ssize_t sent = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(sent);
    } else if (errno == EAGAIN) {
      Wait(POLLOUT, options_.silence, "sending the request");
    } else if (errno != EINTR) {
      Fail(std::strerror(errno));
    }
  }
}

size_t Connection::Read(char* bytes, size_t most) {
  while (true) {
    if (tls_) {
      // SSL_read may have data without a wait, which must not delay Ctrl-C.
      signals_.Wait(-1, 0, std::chrono::milliseconds(0));
      ClearTlsError();
      const int received = SSL_read(tls_.get(), bytes, static_cast<int>(most));
      if (received > 0) return received;
      if (!WaitForTls(received, "a byte from the server")) return 0;
      continue;
    }
    // Wait first, so that a fast stream cannot delay Ctrl-C.
    Wait(POLLIN, options_.silence, "a byte from the server");
    const ssize_t received = recv(socket_.get(), bytes, most, 0);
    if (received >= 0) return received;
    if (errno != EAGAIN && errno != EINTR) Fail(std::strerror(errno));
  }
}

}  // namespace switchyard::chat
