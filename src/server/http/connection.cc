#include "server/http/connection.h"

#include <fmt/format.h>
#include <poll.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "server/http/admission.h"
#include "server/http/error_body.h"
#include "server/http/exchange.h"
#include "server/http/host_port.h"

namespace switchyard::http {
namespace {

namespace asio = boost::asio;
namespace beast_http = boost::beast::http;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Parser = beast_http::request_parser<beast_http::string_body>;

// Errors come back as values; cancellation is one of them.
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

// What a client may send ahead of the response it waits for. The rest stays in the kernel, and a
// hang-up behind more than the kernel takes shows only later.
constexpr size_t kMaxReadAhead = 64 << 10;
constexpr size_t kReadSize = 16 << 10;
constexpr milliseconds kHangUpPoll{50};

// After the last response we read and drop what the client still sends: closing at once would reset
// the connection, and the reset can overtake the response.
constexpr milliseconds kLinger{5000};

constexpr int64_t kMinBodyBytesPerMs =
    64;  // below that a body is too slow: about 64 KiB per second

std::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

std::string PeerName(const tcp::socket& socket) {
  error_code ec;
  const tcp::endpoint peer = socket.remote_endpoint(ec);
  if (ec) return "unknown";
  return HostPort(peer.address().to_string(), peer.port());
}

// The answer to a request that could not be read; none if the client is gone.
std::optional<Admission> RefuseUnreadable(error_code ec, bool timed_out,
                                          const ServerOptions& options) {
  using beast_http::error;
  if (timed_out) {
    return Admission::Refuse(408, "The request did not arrive in time", "request_timeout");
  }
  if (ec == error::body_limit) {
    return Admission::Refuse(
        413, fmt::format("The request body is larger than {} bytes", options.max_body_bytes),
        "body_too_large");
  }
  if (ec == error::header_limit) {
    return Admission::Refuse(
        431, fmt::format("The request header is larger than {} bytes", options.max_header_bytes),
        "header_too_large");
  }
  if (ec == error::bad_version) {
    return Admission::Refuse(505, "Only HTTP/1.0 and HTTP/1.1 are spoken here", "http_version");
  }
  if (ec == error::end_of_stream || ec == error::partial_message) return std::nullopt;
  if (ec.category() == make_error_code(error::bad_method).category()) {
    return Admission::Refuse(400, "The request is no valid HTTP: " + ec.message(),
                             "malformed_request");
  }
  return std::nullopt;
}

// A coding that we do not know leaves the end of the body unknown too.
bool HasUnknownCoding(const Parser& parser) {
  const auto coding = parser.get().find(beast_http::field::transfer_encoding);
  return coding != parser.get().end() && !boost::beast::iequals(coding->value(), "chunked");
}

// Counts a request as open while it lives.
class OpenRequest {
 public:
  explicit OpenRequest(std::atomic<size_t>& count) : count_(count) { ++count_; }
  ~OpenRequest() { --count_; }
  OpenRequest(const OpenRequest&) = delete;
  OpenRequest& operator=(const OpenRequest&) = delete;

 private:
  std::atomic<size_t>& count_;
};

class ConnectionImpl final : public Connection,
                             public std::enable_shared_from_this<ConnectionImpl> {
 public:
  ConnectionImpl(const ConnectionContext& context, tcp::socket socket)
      : options_(context.options),
        router_(context.router),
        open_requests_(context.open_requests),
        socket_(std::move(socket)),
        deadline_(socket_.get_executor()),
        news_(socket_.get_executor(), Clock::time_point::max()),
        peer_(PeerName(socket_)) {}

  void Advance(Phase phase) override;
  void Spawn(std::function<void(Connection*)> on_end);

 private:
  enum class Activity { kIdle, kReading, kAnswering, kLingering };

  awaitable<void> Run();
  awaitable<bool> AwaitRequest();
  awaitable<bool> ServeRequest();
  awaitable<std::optional<Admission>> ReadHeader(Parser& parser, Request& request);
  awaitable<std::optional<Admission>> ReadBody(Parser& parser);
  void Dispatch(const Admission& admission, std::shared_ptr<const Request> request);
  awaitable<bool> WriteResponse();
  awaitable<bool> WriteAll(std::string_view bytes);
  awaitable<void> WatchPeer();
  awaitable<void> Linger();

  void LogServed(const Request& request, int status, bool written, milliseconds time) const;
  void AnnounceNews();
  void OnNews();
  void Arm(milliseconds limit);
  void Disarm();
  void CloseSocket();

  const ServerOptions& options_;
  const Router& router_;
  std::atomic<size_t>& open_requests_;
  std::atomic<Phase> phase_ = Phase::kServing;

  // All below belongs to the strand.
  tcp::socket socket_;
  asio::steady_timer deadline_;  // of the socket operation under way: one at a time has one
  uint64_t deadline_count_ = 0;
  bool timed_out_ = false;
  asio::steady_timer news_;  // never expires; cancelled when the exchange has something to write
  const std::string peer_;
  boost::beast::flat_buffer buffer_;    // received, not yet parsed
  std::shared_ptr<Exchange> exchange_;  // of the response under way
  Activity activity_ = Activity::kIdle;
};

void ConnectionImpl::Spawn(std::function<void(Connection*)> on_end) {
  asio::co_spawn(
      socket_.get_executor(), Run(),
      [self = shared_from_this(), on_end = std::move(on_end)](const std::exception_ptr& failure) {
        try {
          if (failure) std::rethrow_exception(failure);
        } catch (const std::exception& e) {
          LOG_ERROR("http: {}: the connection failed: {}", self->peer_, e.what());
        }
        if (self->exchange_) std::exchange(self->exchange_, nullptr)->Close();
        self->Disarm();
        self->CloseSocket();
        on_end(self.get());
      });
}

void ConnectionImpl::Advance(Phase phase) {
  Phase before = phase_.load();
  while (before < phase && !phase_.compare_exchange_weak(before, phase)) {
  }
  asio::post(socket_.get_executor(), [self = shared_from_this(), phase] {
    if (self->exchange_) self->exchange_->DisableKeepAlive();
    const bool waiting =
        self->activity_ == Activity::kIdle || self->activity_ == Activity::kLingering;
    if (phase == Phase::kClosed || (phase == Phase::kDraining && waiting)) self->CloseSocket();
  });
}

awaitable<void> ConnectionImpl::Run() {
  while (true) {
    const bool has_request = co_await AwaitRequest();
    if (!has_request) co_return;
    const bool more = co_await ServeRequest();
    if (!more) co_return;
  }
}

// Waits for the first byte of a request. False if none comes.
awaitable<bool> ConnectionImpl::AwaitRequest() {
  if (buffer_.size() > 0) co_return true;
  if (phase_.load() >= Phase::kDraining) co_return false;
  activity_ = Activity::kIdle;
  Arm(options_.idle_timeout);
  const auto [ec, count] = co_await socket_.async_read_some(buffer_.prepare(kReadSize), kAwait);
  Disarm();
  buffer_.commit(count);
  co_return !ec;
}

// Reads one request and answers it. True if another one may follow on this connection.
awaitable<bool> ConnectionImpl::ServeRequest() {
  using namespace asio::experimental::awaitable_operators;
  activity_ = Activity::kReading;
  const auto start = Clock::now();
  Parser parser;
  parser.header_limit(static_cast<uint32_t>(options_.max_header_bytes));
  parser.body_limit(options_.max_body_bytes);
  auto request = std::make_shared<Request>();
  request->peer = peer_;

  std::optional<Admission> admission = co_await ReadHeader(parser, *request);
  if (admission && admission->handler != nullptr && !parser.is_done()) {
    std::optional<Admission> refusal = co_await ReadBody(parser);
    if (!parser.is_done()) admission = std::move(refusal);
  }
  if (!admission) co_return false;
  const bool whole = parser.is_done();
  request->body = std::move(parser.get().body());

  activity_ = Activity::kAnswering;
  exchange_ =
      std::make_shared<Exchange>(Exchange::Options{.head = request->method == "HEAD",
                                                   .chunked = parser.get().version() >= 11,
                                                   .keep_alive = whole && parser.keep_alive() &&
                                                                 phase_.load() == Phase::kServing,
                                                   .allow_cors = options_.allow_cors,
                                                   .max_backlog = options_.max_backlog_bytes},
                                 [this] { AnnounceNews(); });
  bool written = false;
  {
    const OpenRequest open(open_requests_);
    Dispatch(*admission, request);
    const auto outcome = co_await (WriteResponse() || WatchPeer());
    written = outcome.index() == 0 && std::get<0>(outcome);
  }
  const auto exchange = std::exchange(exchange_, nullptr);
  exchange->Close();
  LogServed(*request, exchange->status(), written,
            std::chrono::duration_cast<milliseconds>(Clock::now() - start));

  if (!written) co_return false;
  if (exchange->keep_alive()) co_return true;
  if (phase_.load() < Phase::kDraining) co_await Linger();
  co_return false;
}

void ConnectionImpl::LogServed(const Request& request, int status, bool written,
                               milliseconds time) const {
  constexpr const char* kLine = "http: {} {} {} -> {}{} in {} ms";
  const char* cut = written ? "" : ", cut off";
  if (options_.log_requests) {
    LOG_INFO(kLine, peer_, request.method, request.path, status, cut, time.count());
  } else {
    LOG_DEBUG(kLine, peer_, request.method, request.path, status, cut, time.count());
  }
}

// Who answers the request; none if the client is gone.
awaitable<std::optional<Admission>> ConnectionImpl::ReadHeader(Parser& parser, Request& request) {
  Arm(options_.read_timeout);
  const auto [ec, count] = co_await beast_http::async_read_header(socket_, buffer_, parser, kAwait);
  Disarm();
  // A header that breaks a limit has been parsed up to there: enough to know HEAD from GET.
  request.method = View(parser.get().method_string());
  if (ec) co_return RefuseUnreadable(ec, timed_out_, options_);
  if (HasUnknownCoding(parser)) {
    co_return Admission::Refuse(501, "Transfer-Encoding may only be \"chunked\"",
                                "transfer_encoding");
  }
  for (const auto& field : parser.get()) {
    request.headers.emplace_back(View(field.name_string()), View(field.value()));
  }
  co_return Admit(options_, router_, View(parser.get().target()), request);
}

// Reads up to the end of the body: parser.is_done(). If that does not come, who answers instead.
awaitable<std::optional<Admission>> ConnectionImpl::ReadBody(Parser& parser) {
  const auto& message = parser.get();
  if (boost::beast::iequals(message[beast_http::field::expect], "100-continue")) {
    const bool written = co_await WriteAll("HTTP/1.1 100 Continue\r\n\r\n");
    if (!written) co_return std::nullopt;
  }
  const auto start = Clock::now();
  while (!parser.is_done()) {
    const milliseconds allowance{static_cast<int64_t>(message.body().size()) / kMinBodyBytesPerMs};
    const auto deadline = start + options_.read_timeout + allowance;
    Arm(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
    const auto [ec, count] = co_await beast_http::async_read_some(socket_, buffer_, parser, kAwait);
    Disarm();
    if (ec) co_return RefuseUnreadable(ec, timed_out_, options_);
  }
  co_return std::nullopt;
}

// Nothing a handler throws leaves this function.
void ConnectionImpl::Dispatch(const Admission& admission, std::shared_ptr<const Request> request) {
  const Responder responder(exchange_);
  if (admission.handler == nullptr) {
    const std::string body = admission.status >= 400
                                 ? ErrorBody(admission.status, admission.message, admission.code)
                                 : "";
    responder.Send(admission.status, body.empty() ? "" : kJson, body, admission.headers);
    return;
  }
  try {
    (*admission.handler)(std::move(request), responder);
  } catch (const Error& e) {
    responder.SendError(e);
  } catch (const std::exception& e) {
    LOG_ERROR("http: a handler failed: {}", e.what());
    responder.SendError(500, "The server failed to process this request");
  } catch (...) {
    LOG_ERROR("http: a handler threw something that is no exception");
    responder.SendError(500, "The server failed to process this request");
  }
}

// True once the whole response is written, false if it cannot be.
awaitable<bool> ConnectionImpl::WriteResponse() {
  while (true) {
    const Exchange::Output output = exchange_->Take();
    if (!output.bytes.empty()) {
      const bool written = co_await WriteAll(output.bytes);
      if (!written) co_return false;
    } else if (output.state == Exchange::State::kOpen) {
      co_await news_.async_wait(kAwait);
    } else {
      co_return output.state == Exchange::State::kEnded;
    }
  }
}

awaitable<bool> ConnectionImpl::WriteAll(std::string_view bytes) {
  while (!bytes.empty()) {
    Arm(options_.write_timeout);
    const auto [ec, count] =
        co_await socket_.async_write_some(asio::buffer(bytes.data(), bytes.size()), kAwait);
    Disarm();
    if (ec) co_return false;
    bytes.remove_prefix(count);
  }
  co_return true;
}

// Returns when the client is gone. What it sends in the meantime, the next request, is kept.
awaitable<void> ConnectionImpl::WatchPeer() {
  while (socket_.is_open()) {
    if (buffer_.size() < kMaxReadAhead) {
      const auto [ec, count] = co_await socket_.async_read_some(buffer_.prepare(kReadSize), kAwait);
      buffer_.commit(count);
      if (ec) co_return;
      continue;
    }
    pollfd socket{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
    if (poll(&socket, 1, 0) != 0) co_return;
    asio::steady_timer pause(socket_.get_executor(), kHangUpPoll);
    const auto [ec] = co_await pause.async_wait(kAwait);
    if (ec) co_return;
  }
}

awaitable<void> ConnectionImpl::Linger() {
  activity_ = Activity::kLingering;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  buffer_.consume(buffer_.size());
  Arm(kLinger);
  while (true) {
    const auto [ec, count] = co_await socket_.async_read_some(buffer_.prepare(kReadSize), kAwait);
    if (ec) break;
  }
  Disarm();
}

// On a producer's thread, under the exchange's lock, which Close() takes before this connection can
// end.
void ConnectionImpl::AnnounceNews() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->OnNews(); });
}

void ConnectionImpl::OnNews() {
  if (exchange_ && exchange_->Overflowed() && socket_.is_open()) {
    LOG_WARNING("http: {}: closed, the client reads too slowly: over {} bytes were waiting", peer_,
                options_.max_backlog_bytes);
    CloseSocket();
  }
  news_.cancel();
}

// Cancels the socket's operations after `limit`. The count
// identifies a timer that fires just as it is disarmed.
void ConnectionImpl::Arm(milliseconds limit) {
  timed_out_ = false;
  deadline_.expires_after(limit);
  deadline_.async_wait([self = shared_from_this(), count = ++deadline_count_](error_code ec) {
    if (ec || count != self->deadline_count_) return;
    self->timed_out_ = true;
    error_code ignored;
    self->socket_.cancel(ignored);
  });
}

void ConnectionImpl::Disarm() {
  ++deadline_count_;
  deadline_.cancel();
}

void ConnectionImpl::CloseSocket() {
  error_code ignored;
  socket_.close(ignored);
}

}  // namespace

std::shared_ptr<Connection> Connection::Start(const ConnectionContext& context, tcp::socket socket,
                                              std::function<void(Connection*)> on_end) {
  auto connection = std::make_shared<ConnectionImpl>(context, std::move(socket));
  connection->Spawn(std::move(on_end));
  return connection;
}

}  // namespace switchyard::http
