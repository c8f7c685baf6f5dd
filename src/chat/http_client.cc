#include "chat/http_client.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace switchyard::chat {
namespace {

bool RemovePrefix(std::string_view* text, std::string_view prefix) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// Path without a trailing slash and without a trailing /v1.
std::string PrefixOf(std::string_view path) {
  const auto trim = [&path] {
    while (path.ends_with('/')) path.remove_suffix(1);
  };
  trim();
  if (path.ends_with("/v1")) path.remove_suffix(3);
  trim();
  return std::string(path);
}

int ParsePort(std::string_view digits, std::string_view url) {
  int port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port < 1 || port > 65535)
    throw Invalid("{}: the port is \"{}\", want 1 to 65535", url, digits);
  return port;
}

}  // namespace

std::string ServerUrl::Host() const {
  if (!unix_socket.empty()) return "localhost";
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return fmt::format("{}:{}", name, port);
}

std::string ServerUrl::Text() const {
  if (!unix_socket.empty()) return "unix:" + unix_socket;
  return fmt::format("{}://{}{}", tls ? "https" : "http", Host(), prefix);
}

ServerUrl ParseServerUrl(std::string_view text) {
  ServerUrl url;
  // Control characters and spaces would break the head of a request.
  if (std::ranges::any_of(text, [](unsigned char c) { return c <= ' ' || c == 0x7f; }))
    throw Invalid("{}: a URL has no spaces and no control characters", text);
  std::string_view rest = text;
  if (RemovePrefix(&rest, "unix:")) {
    if (rest.starts_with("//")) rest.remove_prefix(2);
    url.unix_socket = rest;
    if (rest.empty()) throw Invalid("{}: want unix:PATH of a socket", text);
    return url;
  }
  if (RemovePrefix(&rest, "https://")) {
    url.tls = true;
    url.port = 443;
  } else if (!RemovePrefix(&rest, "http://") && rest.find("://") != std::string_view::npos) {
    throw Invalid("{}: want http://HOST:PORT, https://HOST or unix:PATH", text);
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string_view path = rest.substr(slash);
  std::string_view where = rest.substr(0, slash);
  if (rest.find_first_of("?#") != std::string_view::npos)
    throw Invalid("{}: want a URL without ? and #", text);
  if (where.find('@') != std::string_view::npos)
    throw Invalid("{}: want a URL without a user; --api-key sets the key", text);
  url.prefix = PrefixOf(path);
  if (where.starts_with('[')) {
    const size_t close = where.find(']');
    if (close == std::string_view::npos) throw Invalid("{}: a bracket is not closed", text);
    url.host = where.substr(1, close - 1);
    where.remove_prefix(close + 1);
    if (!where.empty() && !where.starts_with(':')) throw Invalid("{}: want [HOST]:PORT", text);
  } else {
    const size_t colon = std::min(where.find(':'), where.size());
    url.host = where.substr(0, colon);
    where.remove_prefix(colon);
    if (where.find(':', 1) != std::string_view::npos)
      throw Invalid("{}: write IPv6 addresses in brackets, like http://[::1]:30000", text);
  }
  if (url.host.empty()) throw Invalid("{}: the URL names no host", text);
  if (!where.empty()) url.port = ParsePort(where.substr(1), text);
  return url;
}

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

// Call it before a function of OpenSSL: if that function fails, WaitForTls reads the cause from
// OpenSSL's error queue and errno.
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
      // SSL_read may return buffered data without waiting for the socket. So first check for
      // signals, such as Ctrl-C.
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

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

constexpr size_t kMaxBody = size_t{64} << 20;
constexpr size_t kPiece = 16 << 10;  // bytes of one read

}  // namespace

std::string HttpClient::Head(std::string_view method, std::string_view path) const {
  std::string head = fmt::format(
      "{} {}{} HTTP/1.1\r\nHost: {}\r\nUser-Agent: switchyard-chat\r\nConnection: close\r\n",
      method, url_.prefix, path, url_.Host());
  if (!key_.empty()) head += fmt::format("Authorization: Bearer {}\r\n", key_);
  return head;
}

HttpClient::Response HttpClient::Get(std::string_view path) {
  return Exchange(Head("GET", path) + "Accept: application/json\r\n\r\n", {});
}

HttpClient::Response HttpClient::Post(std::string_view path, std::string_view body,
                                      const std::function<void(std::string_view)>& part) {
  std::string request = Head("POST", path);
  request += fmt::format(
      "Accept: text/event-stream\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
      body.size());
  return Exchange(request.append(body), part);
}

HttpClient::Response HttpClient::Exchange(const std::string& request,
                                          const std::function<void(std::string_view)>& part) {
  Connection connection(url_, options_, signals_);
  connection.Write(request);
  const auto fail = [this](const std::string& why) {
    return Error(ErrorKind::kPeer, fmt::format("{}: {}", url_.Text(), why));
  };

  http::response_parser<http::string_body> parser;
  parser.eager(true);
  parser.body_limit(boost::none);  // checked below: a stream may be longer
  std::vector<char> received;      // bytes that the parser has not consumed
  Response response;
  boost::system::error_code error;
  const auto take_body = [&] {
    std::string& body = parser.get().body();
    if (body.empty()) return;
    if (part && response.status == 200)
      part(body);
    else
      response.body += body;
    body.clear();
    if (response.body.size() > kMaxBody) throw fail("the response is larger than 64 MiB");
  };
  while (!parser.is_done()) {
    const size_t before = received.size();
    received.resize(before + kPiece);
    const size_t count = connection.Read(received.data() + before, kPiece);
    received.resize(before + count);
    if (count == 0) {
      if (!parser.got_some()) throw fail("the server closed the connection without a response");
      parser.put_eof(error);
      if (error || !parser.is_done()) throw fail("the connection ended within the response");
    }
    while (!received.empty() && !parser.is_done()) {
      const size_t used = parser.put(asio::buffer(received.data(), received.size()), error);
      received.erase(received.begin(), received.begin() + static_cast<std::ptrdiff_t>(used));
      if (error == http::error::need_more) {
        error = {};
        break;
      }
      if (error) throw fail(fmt::format("the response is not HTTP ({})", error.message()));
      if (parser.is_header_done()) response.status = static_cast<int>(parser.get().result_int());
      take_body();
      if (used == 0) break;
    }
    if (parser.is_header_done()) response.status = static_cast<int>(parser.get().result_int());
    take_body();
  }
  return response;
}

}  // namespace switchyard::chat
