#include "route/upstream.h"

#include <netinet/tcp.h>
#include <strings.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <cctype>
#include <tuple>
#include <utility>

#include "core/format.h"

namespace switchyard::route {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::use_awaitable;
using boost::system::error_code;

constexpr auto kResult = asio::as_tuple(use_awaitable);

bool EqualNames(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

// Whether a header is not forwarded: it belongs to one connection (RFC 9110, section 7.6.1), or is
// written anew for the next connection.
bool IsHopByHop(std::string_view name) {
  for (const char* hop :
       {"connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization",
        "te", "trailer", "transfer-encoding", "upgrade", "content-length", "host", "expect"})
    if (EqualNames(name, hop)) return true;
  return false;
}

std::string Encode(std::string_view text, std::string_view unescaped) {
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) || unescaped.find(c) != std::string_view::npos)
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

std::string ErrorText(const error_code& error, std::chrono::milliseconds limit) {
  if (error == beast::error::timeout) return fmt::format("no byte for {} ms", limit.count());
  return error.message();
}

}  // namespace

std::string RequestHead(const http::Request& request, const WorkerUrl& worker,
                        const std::string& worker_key) {
  // The router's own server omits the body of a response to HEAD.
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  std::string head = method + ' ' + worker.prefix + Encode(request.path, "/-._~:@!$'()*,");
  char separator = '?';
  for (const auto& [name, value] : request.query) {
    head += separator + Encode(name, "-._~") + '=' + Encode(value, "-._~");
    separator = '&';
  }
  const bool ipv6 = worker.host.find(':') != std::string::npos;
  head += fmt::format(" HTTP/1.1\r\nHost: {}:{}\r\n", ipv6 ? "[" + worker.host + "]" : worker.host,
                      worker.port);
  for (const auto& [name, value] : request.headers) {
    if (IsHopByHop(name) || EqualNames(name, "x-request-id") || EqualNames(name, "x-forwarded-for"))
      continue;
    if (!worker_key.empty() && (EqualNames(name, "authorization") || EqualNames(name, "x-api-key")))
      continue;
    head += fmt::format("{}: {}\r\n", name, value);
  }
  if (!worker_key.empty()) head += fmt::format("Authorization: Bearer {}\r\n", worker_key);
  head += fmt::format("X-Request-Id: {}\r\n", request.id);
  // Append the client's address without the port. Addresses that earlier proxies added come first.
  std::string from(request.Header("x-forwarded-for"));
  const std::string peer = request.peer.substr(0, request.peer.rfind(':'));
  head += fmt::format("X-Forwarded-For: {}{}{}\r\n", from, from.empty() ? "" : ", ", peer);
  if (!request.body.empty() || request.method == "POST" || request.method == "PUT")
    head += fmt::format("Content-Length: {}\r\n", request.body.size());
  return head + "\r\n";
}

ResponseTooLarge::ResponseTooLarge(size_t limit)
    : std::runtime_error(fmt::format("the response exceeds {} bytes", limit)) {}

void Upstream::CheckCancelled() const {
  if (cancelled_) throw UpstreamError(false, "cancelled");
}

asio::awaitable<void> Upstream::Connect(const WorkerUrl& worker) {
  asio::ip::tcp::resolver resolver(stream_.get_executor());
  const auto [unresolved, addresses] =
      co_await resolver.async_resolve(worker.host, std::to_string(worker.port), kResult);
  CheckCancelled();
  if (unresolved) throw UpstreamError(true, "unknown host: " + unresolved.message());
  stream_.expires_after(timeouts_.connect);
  const auto [error, address] = co_await stream_.async_connect(addresses, kResult);
  CheckCancelled();
  if (error) throw UpstreamError(true, "connect: " + ErrorText(error, timeouts_.connect));
  error_code ignored;
  stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
  // A host without power sends no reset. So the connection fails if sent data is not acknowledged
  // within this time.
  constexpr unsigned kUnacknowledgedMs = 30'000;
  setsockopt(stream_.socket().native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnacknowledgedMs,
             sizeof kUnacknowledgedMs);
}

asio::awaitable<void> Upstream::Send(const std::string& head, std::string_view body) {
  stream_.expires_after(timeouts_.silence);
  const std::array<asio::const_buffer, 2> buffers = {asio::buffer(head),
                                                     asio::buffer(body.data(), body.size())};
  const auto [unsent, sent] = co_await asio::async_write(stream_, buffers, kResult);
  CheckCancelled();
  // A worker may respond before it has read the whole body, for example with a 413.
  error_code error;
  do {  // interim responses (1xx) come before the response
    parser_.emplace();
    parser_->body_limit(boost::none);
    std::tie(error, std::ignore) =
        co_await beast::http::async_read_header(stream_, buffer_, *parser_, kResult);
  } while (!error && status() < 200);
  CheckCancelled();
  if (error)
    throw UpstreamError(false, unsent ? "send: " + ErrorText(unsent, timeouts_.silence)
                                      : "response: " + ErrorText(error, timeouts_.silence));
}

std::string Upstream::Header(std::string_view name) const {
  const auto found = parser_->get().find({name.data(), name.size()});
  return found == parser_->get().end() ? std::string() : std::string(found->value());
}

http::Headers Upstream::ForwardedHeaders() const {
  http::Headers headers;
  for (const auto& field : parser_->get()) {
    const std::string name(field.name_string());
    if (IsHopByHop(name) || EqualNames(name, "content-type") || EqualNames(name, "x-request-id") ||
        EqualNames(name, "date") || EqualNames(name, "server") ||
        EqualNames(name, "cache-control") || EqualNames(name, "x-accel-buffering") ||
        EqualNames(name, "vary") || EqualNames(name.substr(0, 15), "access-control-"))
      continue;
    headers.emplace_back(name, field.value());
  }
  return headers;
}

asio::awaitable<std::string> Upstream::Read() {
  std::string& body = parser_->get().body();
  while (body.empty() && !parser_->is_done()) {
    CheckCancelled();
    stream_.expires_after(timeouts_.silence);
    const auto [error, count] =
        co_await beast::http::async_read_some(stream_, buffer_, *parser_, kResult);
    if (error) throw UpstreamError(false, "response: " + ErrorText(error, timeouts_.silence));
  }
  co_return std::exchange(body, {});
}

asio::awaitable<std::string> Upstream::ReadAll(size_t limit) {
  std::string all;
  for (std::string part; !(part = co_await Read()).empty();) {
    if (part.size() > limit - all.size()) throw ResponseTooLarge(limit);
    all += part;
  }
  co_return all;
}

void IdleConnections::Put(int64_t worker, beast::tcp_stream stream) {
  stream.expires_never();
  std::deque<beast::tcp_stream>& streams = streams_[worker];
  streams.push_back(std::move(stream));
  if (streams.size() > kMostOfWorker) streams.pop_front();
}

std::unique_ptr<beast::tcp_stream> IdleConnections::Take(int64_t worker) {
  const auto found = streams_.find(worker);
  if (found == streams_.end() || found->second.empty()) return nullptr;
  auto stream = std::make_unique<beast::tcp_stream>(std::move(found->second.back()));
  found->second.pop_back();
  return stream;
}

void IdleConnections::Drop(int64_t worker) { streams_.erase(worker); }

}  // namespace switchyard::route
