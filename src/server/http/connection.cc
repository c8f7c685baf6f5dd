#include "server/http/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
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
#include "server/http/request_body.h"
#include "server/http/request_parser.h"
#include "server/http/served_request.h"

namespace switchyard::http {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using boost::system::error_code;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Errors, including cancellation, are returned as values.
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

// Read buffer sizes of an idle connection and of one that is receiving a request.
constexpr size_t kIdleReadSize = 1 << 10, kReadSize = 16 << 10;
// Maximum number of bytes that are read during a response. Further bytes stay in the kernel's
// buffer.
constexpr size_t kMaxReadAhead = 16 << 10;
// If the client has closed its sending side, the connection is checked for a reset every
// kHangUpPoll. After kPollsBetweenProbes checks, Exchange::Probe is called.
constexpr milliseconds kHangUpPoll{25};
constexpr int kPollsBetweenProbes = 80;
// Time limit to receive the request on a connection beyond the connection limit.
constexpr milliseconds kSpareTimeout{2000};

// Time for which further input is read and discarded after the last response. A close with unread
// input resets the connection, and the client may then lose the response.
constexpr milliseconds kLinger{5000};

// Minimum upload rate of a body, about 64 KiB per second.
constexpr int64_t kMinBodyBytesPerMs = 64;

Refusal TimedOut() { return {408, "The request did not arrive in time", "request_timeout"}; }

Refusal Incomplete() {
  return {400, "The connection was closed before the end of the request", "malformed_request"};
}

Admission ToAdmission(const Refusal& refusal) {
  return Admission::Refuse(refusal.status, refusal.message, refusal.code);
}

class ConnectionImpl final : public Connection,
                             public std::enable_shared_from_this<ConnectionImpl> {
 public:
  ConnectionImpl(const ConnectionContext& context, ClientStream::Socket socket, bool spare)
      : context_(context),
        options_(context.options),
        spare_(spare),
        peer_(PeerName(socket)),
        stream_(std::move(socket), context.tls),
        deadline_(stream_.get_executor()),
        news_(stream_.get_executor(), Clock::time_point::max()) {}

  void Advance(Phase phase) override;
  bool CloseUnlessAnswering() override;
  void Comment(const std::string& text) override;
  void Spawn(std::function<void(Connection*)> on_end);

 private:
  enum class Activity { kIdle, kReading, kAnswering, kLingering };
  struct Received {  // a request, or the error response for it
    Admission admission;
    std::shared_ptr<Request> request;
    RequestHead head;
    bool whole = false;  // read completely, so another request may follow
  };

  awaitable<void> Run();
  awaitable<bool> AwaitRequest();
  awaitable<bool> ServeRequest();
  awaitable<std::optional<Received>> Receive();
  awaitable<std::optional<Refusal>> ReadHead(RequestParser& parser, MemoryCharge& charge,
                                             Clock::time_point deadline);
  awaitable<std::optional<Refusal>> ReadBody(const RequestHead& head, BodyBuffer& body,
                                             Clock::time_point deadline);
  Admission Judge(const RequestHead& head, Request& request) const;
  std::shared_ptr<Exchange> MakeExchange(const Received& received, size_t kept);
  awaitable<bool> WriteResponse();
  awaitable<bool> WriteAll(std::string_view bytes);
  awaitable<void> WatchPeer();
  awaitable<void> Linger();

  awaitable<error_code> ReadMore(size_t most);
  std::string_view Input() const { return std::string_view(input_).substr(used_); }
  void NotifyOutput();
  void OnOutput();
  void Arm(milliseconds limit);
  void ArmUntil(Clock::time_point deadline);
  void Disarm();

  const ConnectionContext context_;
  const ServerOptions& options_;
  const bool spare_;
  const std::string peer_;
  std::atomic<Phase> phase_ = Phase::kServing;
  std::atomic<Activity> activity_ = Activity::kIdle;  // written on the strand

  // All members below are accessed on the strand only.
  ClientStream stream_;
  asio::steady_timer deadline_;  // time limit of the current socket operation
  uint64_t deadline_count_ = 0;
  bool timed_out_ = false;
  asio::steady_timer news_;  // never expires; cancelled when the exchange has new output
  std::string input_;        // received bytes; the first used_ of them are consumed
  size_t used_ = 0;
  std::shared_ptr<Exchange> exchange_;  // exchange of the current response
};

void ConnectionImpl::Spawn(std::function<void(Connection*)> on_end) {
  asio::co_spawn(
      stream_.get_executor(), Run(),
      [self = shared_from_this(), on_end = std::move(on_end)](const std::exception_ptr& failure) {
        try {
          if (failure) std::rethrow_exception(failure);
        } catch (const std::exception& e) {
          LOG_ERROR("http: {}: the connection failed: {}", self->peer_, e.what());
        }
        if (self->exchange_) std::exchange(self->exchange_, nullptr)->Close();
        self->Disarm();
        self->stream_.Close();
        on_end(self.get());
      });
}

void ConnectionImpl::Advance(Phase phase) {
  Phase before = phase_.load();
  while (before < phase && !phase_.compare_exchange_weak(before, phase)) {
  }
  asio::post(stream_.get_executor(), [self = shared_from_this(), phase] {
    if (self->exchange_) self->exchange_->DisableKeepAlive();
    const Activity activity = self->activity_.load();
    const bool waiting = activity == Activity::kIdle || activity == Activity::kLingering;
    if (phase == Phase::kClosed || (phase == Phase::kDraining && waiting)) self->stream_.Close();
  });
}

bool ConnectionImpl::CloseUnlessAnswering() {
  if (activity_.load() == Activity::kAnswering) return false;
  asio::post(stream_.get_executor(), [self = shared_from_this()] {
    // A request may have become complete since the check above.
    if (self->activity_.load() != Activity::kAnswering) self->stream_.Close();
  });
  return true;
}

void ConnectionImpl::Comment(const std::string& text) {
  asio::post(stream_.get_executor(), [self = shared_from_this(), text] {
    if (self->exchange_) self->exchange_->Comment(text);
  });
}

awaitable<void> ConnectionImpl::Run() {
  Arm(options_.read_timeout);
  const bool secure = co_await stream_.Handshake();
  Disarm();
  if (!secure) co_return;
  while (true) {
    const bool has_request = co_await AwaitRequest();
    if (!has_request) co_return;
    const bool more = co_await ServeRequest();
    if (!more) co_return;
  }
}

// Appends to input_. Shrinks the buffer if it is empty and larger than `most`.
awaitable<error_code> ConnectionImpl::ReadMore(size_t most) {
  input_.erase(0, used_);
  used_ = 0;
  if (input_.empty() && input_.capacity() > most) input_ = std::string();
  const size_t before = input_.size();
  input_.resize(before + most);
  const auto [ec, count] = co_await stream_.ReadSome(asio::buffer(input_.data() + before, most));
  input_.resize(before + count);
  co_return ec;
}

// Waits for the first byte of a request. False if the connection ends instead.
awaitable<bool> ConnectionImpl::AwaitRequest() {
  if (!Input().empty()) co_return true;
  if (phase_.load() >= Phase::kDraining) co_return false;
  activity_ = Activity::kIdle;
  Arm(spare_ ? kSpareTimeout : options_.idle_timeout);
  const error_code ec = co_await ReadMore(kIdleReadSize);
  Disarm();
  co_return !ec;
}

// Reads and answers one request. True if another request may follow on this connection.
awaitable<bool> ConnectionImpl::ServeRequest() {
  using namespace asio::experimental::awaitable_operators;
  activity_ = Activity::kReading;
  const auto start = Clock::now();
  std::optional<Received> received = co_await Receive();
  if (!received) co_return false;

  activity_ = Activity::kAnswering;
  RequestObserver* const observer = options_.observer.get();
  const bool kept = observer && observer->keeps(*received->request);
  exchange_ = MakeExchange(*received, kept ? observer->kept_bytes() : 0);
  // The handler releases the request early. Unless it is kept, this is a copy for the log line.
  const std::shared_ptr<const Request> shown =
      kept ? received->request : SummaryOf(*received->request);
  if (kept) observer->OnRequest(shown);
  const std::string route = context_.router.RouteOf(shown->path);
  bool written = false;
  {
    const OpenRequest open(context_.open_requests);
    Dispatch(received->admission, std::move(received->request), Responder(exchange_),
             *context_.workers);
    const auto outcome = co_await (WriteResponse() || WatchPeer());
    written = outcome.index() == 0 && std::get<0>(outcome);
  }
  const auto exchange = std::exchange(exchange_, nullptr);
  exchange->Close();
  if (exchange->status() != 0) context_.responses.Add(route, shown->method, exchange->status());
  bool truncated = false;
  const std::string response = exchange->TakeKept(&truncated);
  ReportServed(options_, {.request = shown,
                          .route = route,
                          .status = exchange->status(),
                          .cut = !written,
                          .tokens = exchange->served(),
                          .begin = start,
                          .end = Clock::now(),
                          .response = response,
                          .response_truncated = truncated,
                          .kept = kept});

  if (!written) co_return false;
  if (exchange->keep_alive()) co_return true;
  if (phase_.load() < Phase::kDraining) co_await Linger();
  co_return false;
}

// Receives one request, or the refusal of one. Returns no value if the client has disconnected.
awaitable<std::optional<ConnectionImpl::Received>> ConnectionImpl::Receive() {
  const auto deadline = Clock::now() + (spare_ ? kSpareTimeout : options_.read_timeout);
  RequestParser parser({.head_bytes = options_.max_header_bytes});
  MemoryCharge charge(context_.budget);
  Received received;
  received.request = std::make_shared<Request>();
  Request& request = *received.request;
  request.peer = peer_;

  std::optional<Refusal> refusal = co_await ReadHead(parser, charge, deadline);
  if (!refusal && !parser.done()) co_return std::nullopt;
  received.head = std::move(parser.head());
  const RequestHead& head = received.head;
  request.method = head.method;
  request.headers = head.fields;
  request.id = RequestId(request);
  if (options_.observer && options_.observer->traces()) request.trace = NewTrace(request);
  received.admission = refusal ? ToAdmission(*refusal) : Judge(head, request);
  if (refusal || (received.admission.handler == nullptr && head.has_body())) co_return received;

  const uint64_t expected = head.chunked ? options_.max_body_bytes : head.length;
  BodyBuffer body(std::move(charge), expected, options_.max_body_bytes);
  if (!head.chunked) refusal = body.CheckLength(head.length);
  if (!refusal && head.has_body()) {
    refusal = co_await ReadBody(head, body, deadline);
    if (!refusal && !stream_.is_open()) co_return std::nullopt;
  }
  if (refusal) {
    received.admission = ToAdmission(*refusal);
    co_return received;
  }
  request.body = std::move(body.bytes());
  request.memory = std::make_shared<MemoryCharge>(std::move(body.charge()));
  received.whole = true;
  co_return received;
}

// Reads until the head is complete or refused. If there is no refusal and parser.done() is false,
// the client has disconnected.
awaitable<std::optional<Refusal>> ConnectionImpl::ReadHead(RequestParser& parser,
                                                           MemoryCharge& charge,
                                                           Clock::time_point deadline) {
  while (true) {
    used_ += parser.Take(Input());
    if (parser.refusal()) co_return parser.refusal();
    if (parser.done()) co_return std::nullopt;
    // Three copies: the raw lines, the parsed fields, and the request's headers.
    if (!charge.Resize(3 * parser.bytes())) co_return OutOfMemory(charge, 3 * parser.bytes());
    ArmUntil(deadline);
    const error_code ec = co_await ReadMore(kReadSize);
    Disarm();
    if (!ec) continue;
    if (timed_out_) co_return TimedOut();
    if (stream_.ended() && parser.started()) co_return Incomplete();
    co_return std::nullopt;
  }
}

awaitable<std::optional<Refusal>> ConnectionImpl::ReadBody(const RequestHead& head,
                                                           BodyBuffer& body,
                                                           Clock::time_point deadline) {
  if (head.expects_continue && Input().empty()) {
    const bool written = co_await WriteAll("HTTP/1.1 100 Continue\r\n\r\n");
    if (!written) stream_.Close();
    if (!written) co_return std::nullopt;
  }
  ChunkDecoder chunks;
  while (true) {
    while (!Input().empty() && !(head.chunked ? chunks.done() : body.size() == head.length)) {
      ChunkDecoder::Step step;
      if (head.chunked) {
        step = chunks.Next(Input());
      } else {
        step.data = Input().substr(0, head.length - body.size());
        step.consumed = step.data.size();
      }
      if (chunks.refusal()) co_return chunks.refusal();
      if (auto refusal = body.Append(step.data)) co_return refusal;
      used_ += step.consumed;
    }
    if (head.chunked ? chunks.done() : body.size() == head.length) co_return std::nullopt;
    const milliseconds allowance{static_cast<int64_t>(body.size()) / kMinBodyBytesPerMs};
    ArmUntil(deadline + allowance);
    const error_code ec = co_await ReadMore(kReadSize);
    Disarm();
    if (!ec) continue;
    if (timed_out_) co_return TimedOut();
    if (stream_.ended()) co_return Incomplete();
    stream_.Close();
    co_return std::nullopt;
  }
}

// Chooses the handler of the request. A spare connection serves only probes.
Admission ConnectionImpl::Judge(const RequestHead& head, Request& request) const {
  Admission admission = Admit(options_, context_.router, head.target, request);
  if (spare_ && !IsPublicPath(options_, request.path)) {
    return Admission::Refuse(503, "The server has reached its connection limit", "connections");
  }
  return admission;
}

std::shared_ptr<Exchange> ConnectionImpl::MakeExchange(const Received& received, size_t kept) {
  const Request& request = *received.request;
  Headers headers = {{"X-Request-Id", request.id}};
  if (std::string trace = TraceParent(request); !trace.empty())
    headers.emplace_back("traceparent", std::move(trace));
  const std::string_view origin = request.Header("Origin");
  if (!origin.empty()) headers.emplace_back("Vary", "Origin");
  if (ClassifyOrigin(options_, origin, received.head.host) == OriginKind::kAllowed)
    headers.emplace_back("Access-Control-Allow-Origin", origin);
  // After a FIN, another request can only be in input that was already received.
  const bool more = !stream_.ended() || !Input().empty();
  return std::make_shared<Exchange>(
      Exchange::Options{.head = request.method == "HEAD",
                        .chunked = received.head.minor_version >= 1,
                        .keep_alive = received.whole && received.head.keep_alive && more &&
                                      !spare_ && phase_.load() == Phase::kServing,
                        .headers = std::move(headers),
                        .max_backlog = options_.max_backlog_bytes,
                        .budget = context_.budget,
                        .workers = context_.workers,
                        .trace = request.trace,
                        .kept_bytes = kept},
      [this] { NotifyOutput(); });
}

// True once the complete response is written, false on failure.
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
    const auto [ec, count] = co_await stream_.WriteSome(bytes);
    Disarm();
    if (ec) co_return false;
    bytes.remove_prefix(count);
  }
  co_return true;
}

// Returns when the client has disconnected. Keeps input that arrives meanwhile for the next
// request.
awaitable<void> ConnectionImpl::WatchPeer() {
  while (stream_.is_open() && !stream_.ended() && Input().size() < kMaxReadAhead) {
    const error_code ec = co_await ReadMore(kIdleReadSize);
    // TLS connections have no half-close.
    if (ec && (!stream_.ended() || stream_.secure())) co_return;
  }
  for (int polls = 0; stream_.is_open() && !stream_.IsReset(); ++polls) {
    if (stream_.EndAnnounced()) {
      if (polls % kPollsBetweenProbes == 0) exchange_->Probe();
    } else {
      polls = -1;
    }
    asio::steady_timer pause(stream_.get_executor(), kHangUpPoll);
    const auto [ec] = co_await pause.async_wait(kAwait);
    if (ec) co_return;
  }
}

awaitable<void> ConnectionImpl::Linger() {
  activity_ = Activity::kLingering;
  Arm(kLinger);
  co_await stream_.ShutdownSend();
  used_ = input_.size();
  while (true) {
    const error_code ec = co_await ReadMore(kReadSize);
    if (ec) break;
    used_ = input_.size();
  }
  Disarm();
}

// Runs on a producer's thread while the exchange's lock is held. `this` stays valid during the
// call: before the connection ends, it calls Exchange::Close, which takes that lock.
void ConnectionImpl::NotifyOutput() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] { self->OnOutput(); });
}

void ConnectionImpl::OnOutput() {
  if (exchange_ && exchange_->Overflowed() && stream_.is_open()) {
    LOG_WARNING(
        "http: {}: connection closed, because the client reads too slowly: its unsent response "
        "exceeds {} bytes, or the free part of --http-memory-limit",
        peer_, options_.max_backlog_bytes);
    stream_.Close();
  }
  news_.cancel();
}

// Cancels the socket's operations after `limit`. A timer may fire although it has just been
// disarmed; deadline_count_ detects this.
void ConnectionImpl::Arm(milliseconds limit) { ArmUntil(Clock::now() + limit); }

void ConnectionImpl::ArmUntil(Clock::time_point deadline) {
  timed_out_ = false;
  deadline_.expires_at(deadline);
  deadline_.async_wait([self = shared_from_this(), count = ++deadline_count_](error_code ec) {
    if (ec || count != self->deadline_count_) return;
    self->timed_out_ = true;
    self->stream_.Cancel();
  });
}

void ConnectionImpl::Disarm() {
  ++deadline_count_;
  deadline_.cancel();
}

}  // namespace

std::shared_ptr<Connection> Connection::Start(const ConnectionContext& context,
                                              ClientStream::Socket socket, bool spare,
                                              std::function<void(Connection*)> on_end) {
  auto connection = std::make_shared<ConnectionImpl>(context, std::move(socket), spare);
  connection->Spawn(std::move(on_end));
  return connection;
}

}  // namespace switchyard::http
