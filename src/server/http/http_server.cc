#include "server/http/http_server.h"

#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/error.h"
#include "core/log.h"
#include "server/http/connection.h"
#include "server/http/error_body.h"
#include "server/http/host_port.h"
#include "server/http/response_head.h"
#include "server/http/router.h"

namespace switchyard::http {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::milliseconds kAcceptPause{100};  // after an accept failed

ServerOptions Checked(ServerOptions options) {
  const auto check = [](bool good, const char* what) {
    if (!good) throw Invalid("HTTP server: {}", what);
  };
  check(options.port >= 0 && options.port <= 65535, "the port must be 0 to 65535");
  check(options.io_threads >= 1 && options.io_threads <= 64, "want 1 to 64 I/O threads");
  check(options.max_connections > 0, "max_connections must be positive");
  check(options.max_header_bytes >= 256 && options.max_header_bytes <= (64 << 20),
        "max_header_bytes must be 256 to 64 MiB");
  return options;
}

Error ListenError(const error_code& ec, const ServerOptions& options) {
  if (ec == asio::error::address_in_use) {
    return Error(ErrorKind::kResource, fmt::format("port {} is in use", options.port),
                 "choose another one with --port, or stop the program that listens there");
  }
  if (ec == asio::error::access_denied) {
    return Error(ErrorKind::kResource, fmt::format("port {} may not be used", options.port),
                 "ports below 1024 are for root; choose another one with --port");
  }
  return Invalid("cannot listen on {}: {} (does --host name an address of this machine?)",
                 HostPort(options.host, options.port), ec.message());
}

// Best effort and without waiting: what does not go out at once is dropped.
void Refuse(tcp::socket socket) {
  const std::string body = ErrorBody(503, "The server has as many connections as it takes");
  const std::string response = Serialize({.status = 503,
                                          .content_type = kJson,
                                          .extra = {{"Retry-After", "1"}},
                                          .length = body.size(),
                                          .chunked = false,
                                          .keep_alive = false}) +
                               body;
  error_code ignored;
  socket.non_blocking(true, ignored);
  char request[4096];  // left unread it would turn the close into a reset
  socket.read_some(asio::buffer(request), ignored);
  socket.write_some(asio::buffer(response), ignored);
  socket.shutdown(tcp::socket::shutdown_both, ignored);
}

}  // namespace

class Server::Impl {
 public:
  explicit Impl(ServerOptions options) : options_(Checked(std::move(options))) {}

  void Route(std::string method, std::string path, Handler handler) {
    CHECK(!io_.has_value());
    router_.Add(std::move(method), std::move(path), std::move(handler));
  }

  void Start();
  void StopAccepting();
  void Stop(std::chrono::milliseconds patience);

  int port() const { return port_; }
  size_t open_requests() const { return open_requests_; }
  std::chrono::milliseconds drain_timeout() const { return options_.drain_timeout; }

 private:
  // Lives from Start to Stop; its end closes every descriptor the server had.
  struct Io {
    explicit Io(int threads) : context(threads), work(context.get_executor()) {}

    asio::io_context context;
    asio::executor_work_guard<asio::io_context::executor_type> work;
    tcp::acceptor acceptor{asio::make_strand(context)};  // its strand guards it and `accepting`
    bool accepting = true;
    std::vector<std::thread> threads;
  };

  void Listen();
  awaitable<void> Accept();
  void Adopt(tcp::socket socket);
  void Advance(Phase phase);
  void Forget(Connection* connection);

  const ServerOptions options_;
  Router router_;
  std::atomic<size_t> open_requests_ = 0;
  int port_ = 0;
  std::optional<Io> io_;

  std::mutex mutex_;  // guards connections_
  std::condition_variable all_ended_;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;
};

void Server::Impl::Start() {
  CHECK(!io_.has_value());
  io_.emplace(options_.io_threads);
  try {
    Listen();
  } catch (...) {
    io_.reset();
    throw;
  }
  asio::co_spawn(io_->acceptor.get_executor(), Accept(), asio::detached);
  for (int i = 0; i < options_.io_threads; ++i) {
    io_->threads.emplace_back([this] { io_->context.run(); });
  }
  LOG_DEBUG("http: listening on {}", HostPort(options_.host, port_));
}

void Server::Impl::Listen() {
  error_code ec;
  tcp::resolver resolver(io_->context);
  const auto found = resolver.resolve(options_.host, std::to_string(options_.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, ec);
  if (ec || found.empty()) {
    throw Invalid("--host {}: unknown host ({})", options_.host, ec.message());
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  tcp::acceptor& acceptor = io_->acceptor;
  acceptor.open(endpoint.protocol(), ec);
  // Lets a server start again while old connections of its port are still dying.
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(tcp::acceptor::max_listen_connections, ec);
  if (ec) throw ListenError(ec, options_);
  port_ = acceptor.local_endpoint().port();
}

awaitable<void> Server::Impl::Accept() {
  while (io_->accepting) {
    tcp::socket socket(asio::make_strand(io_->context));
    const auto [ec] = co_await io_->acceptor.async_accept(socket, kAwait);
    if (!io_->accepting) break;
    if (!ec) {
      Adopt(std::move(socket));
    } else if (ec != asio::error::connection_aborted) {
      LOG_WARNING("http: cannot accept a connection: {}", ec.message());
      asio::steady_timer pause(io_->acceptor.get_executor(), kAcceptPause);
      co_await pause.async_wait(kAwait);
    }
  }
}

void Server::Impl::Adopt(tcp::socket socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  // Held over Start, so that a connection cannot end before it is entered.
  std::lock_guard lock(mutex_);
  if (connections_.size() >= options_.max_connections) {
    Refuse(std::move(socket));
    return;
  }
  const ConnectionContext context{options_, router_, open_requests_};
  auto connection =
      Connection::Start(context, std::move(socket), [this](Connection* ended) { Forget(ended); });
  Connection* const key = connection.get();
  connections_.emplace(key, std::move(connection));
}

void Server::Impl::Forget(Connection* connection) {
  std::lock_guard lock(mutex_);
  connections_.erase(connection);
  if (connections_.empty()) all_ended_.notify_all();
}

void Server::Impl::Advance(Phase phase) {
  std::lock_guard lock(mutex_);
  for (const auto& [key, connection] : connections_) connection->Advance(phase);
}

void Server::Impl::StopAccepting() {
  if (!io_) return;
  const auto close = [this] {
    io_->accepting = false;
    error_code ignored;
    io_->acceptor.close(ignored);
    Advance(Phase::kLastRequest);
  };
  if (io_->context.get_executor().running_in_this_thread()) {
    asio::post(io_->acceptor.get_executor(), close);
    return;
  }
  std::promise<void> closed;
  asio::post(io_->acceptor.get_executor(), [&] {
    close();
    closed.set_value();
  });
  closed.get_future().wait();
}

void Server::Impl::Stop(std::chrono::milliseconds patience) {
  if (!io_) return;
  CHECK(!io_->context.get_executor().running_in_this_thread());
  StopAccepting();
  Advance(Phase::kDraining);
  {
    std::unique_lock lock(mutex_);
    const auto ended = [this] { return connections_.empty(); };
    if (!all_ended_.wait_for(lock, patience, ended)) {
      lock.unlock();
      Advance(Phase::kClosed);
      lock.lock();
      all_ended_.wait(lock, ended);
    }
  }
  io_->work.reset();
  for (std::thread& thread : io_->threads) thread.join();
  io_.reset();
}

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Server::~Server() { impl_->Stop(std::chrono::milliseconds(0)); }

void Server::Route(std::string method, std::string path, Handler handler) {
  impl_->Route(std::move(method), std::move(path), std::move(handler));
}

void Server::Start() { impl_->Start(); }

int Server::port() const { return impl_->port(); }

void Server::StopAccepting() { impl_->StopAccepting(); }

size_t Server::open_requests() const { return impl_->open_requests(); }

void Server::Stop() { impl_->Stop(impl_->drain_timeout()); }

}  // namespace switchyard::http
