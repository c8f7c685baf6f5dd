#include "server/http/http_server.h"

#include <unistd.h>

#include <algorithm>
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
#include "server/http/client_stream.h"
#include "server/http/connection.h"
#include "server/http/listener.h"
#include "server/http/router.h"

namespace switchyard::http {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::milliseconds kAcceptPause{100};  // pause after a failed accept
// Minimum time between two warnings about accept.
constexpr std::chrono::seconds kAcceptWarningPause{10};
// Number of spare connections: connections beyond max_connections that still get one response, so
// that health probes work. In addition, up to this number of earlier spare connections may still be
// closing.
constexpr size_t kSpareConnections = 64;

ServerOptions Checked(ServerOptions options) {
  const auto check = [](bool good, const char* what) {
    if (!good) throw Invalid("HTTP server: {}", what);
  };
  check(options.port >= 0 && options.port <= 65535, "the port must be 0 to 65535");
  check(options.io_threads >= 1 && options.io_threads <= 64, "io_threads must be 1 to 64");
  check(options.max_connections > 0, "max_connections must be positive");
  check(options.max_header_bytes >= 256 && options.max_header_bytes <= (64 << 20),
        "max_header_bytes must be 256 to 64 MiB");
  check(options.worker_threads >= 1 && options.worker_threads <= 64,
        "worker_threads must be 1 to 64");
  check(options.ssl_certfile.empty() == options.ssl_keyfile.empty(),
        "TLS needs both --ssl-certfile and --ssl-keyfile; set the missing one");
  check(options.root_path.empty() ||
            (options.root_path.starts_with('/') && !options.root_path.ends_with('/')),
        "--root-path must begin with / and not end with it");
  return options;
}

}  // namespace

class Server::Impl {
 public:
  explicit Impl(ServerOptions options) : options_(Checked(std::move(options))) {}

  void Route(std::string method, std::string path, Handler handler, Access access) {
    CHECK(!io_.has_value());
    responses_.Begin(path, method);
    router_.Add(std::move(method), std::move(path), std::move(handler), access);
  }

  void Start();
  void StopAccepting();
  void Stop(std::chrono::milliseconds patience);

  int port() const { return port_; }
  void CommentStreams(const std::string& text) {
    std::lock_guard lock(mutex_);
    for (const auto& [key, connection] : connections_) connection->Comment(text);
  }
  size_t open_requests() const { return open_requests_; }
  const ResponseCounts& responses() const { return responses_; }
  const Router& router() const { return router_; }
  std::chrono::milliseconds drain_timeout() const { return options_.drain_timeout; }

 private:
  // Exists from Start to Stop. The destructor closes all descriptors of the server.
  struct Io {
    explicit Io(int threads) : context(threads), work(context.get_executor()) {}

    asio::io_context context;
    asio::executor_work_guard<asio::io_context::executor_type> work;
    // The strand of `acceptor` guards acceptor, accepting, spare and warned.
    Acceptor acceptor{asio::make_strand(context)};
    bool accepting = true;
    SpareDescriptor spare;
    std::chrono::steady_clock::time_point warned{};
    std::vector<std::thread> threads;
  };

  awaitable<void> Accept();
  void OnAcceptFailed(const error_code& ec);
  void Adopt(ClientStream::Socket socket);
  bool MakeSpareRoom();  // requires the mutex
  void Advance(Phase phase);
  void Remove(Connection* connection);

  const ServerOptions options_;
  Router router_;
  std::atomic<size_t> open_requests_ = 0;
  ResponseCounts responses_;
  int port_ = 0;
  std::optional<Io> io_;
  std::optional<TlsContext> tls_;
  std::shared_ptr<MemoryBudget> budget_;
  std::shared_ptr<WorkerPool> workers_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable all_ended_;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;
  // Connections beyond the limit, oldest first; also in connections_.
  std::vector<Connection*> spares_;
  std::vector<Connection*> evicted_;  // earlier spares that are closing
};

void Server::Impl::Start() {
  CHECK(!io_.has_value());
  if (!options_.ssl_certfile.empty()) {
    tls_.emplace(options_.ssl_certfile, options_.ssl_keyfile, options_.ssl_keyfile_password);
  }
  if (options_.memory_bytes > 0) budget_ = std::make_shared<MemoryBudget>(options_.memory_bytes);
  io_.emplace(options_.io_threads);
  try {
    Listen(options_, io_->acceptor);
  } catch (...) {
    io_.reset();
    throw;
  }
  port_ = PortOf(io_->acceptor);
  workers_ = std::make_shared<WorkerPool>(WorkerPool::Options{
      .bulk_threads = options_.worker_threads, .max_queued = options_.max_waiting_bodies});
  asio::co_spawn(io_->acceptor.get_executor(), Accept(), asio::detached);
  for (int i = 0; i < options_.io_threads; ++i) {
    io_->threads.emplace_back([this] { io_->context.run(); });
  }
  LOG_DEBUG("http: listening on {}",
            options_.uds.empty() ? HostPort(options_.host, port_) : options_.uds);
}

awaitable<void> Server::Impl::Accept() {
  while (io_->accepting) {
    ClientStream::Socket socket(asio::make_strand(io_->context));
    const auto [ec] = co_await io_->acceptor.async_accept(socket, kAwait);
    if (!io_->accepting) break;
    if (!ec) {
      Adopt(std::move(socket));
    } else if (ec != asio::error::connection_aborted) {
      OnAcceptFailed(ec);
      asio::steady_timer pause(io_->acceptor.get_executor(), kAcceptPause);
      co_await pause.async_wait(kAwait);
    }
  }
}

// If the process has no descriptors left, releases the spare descriptor, so that waiting clients
// can be accepted and refused with a response.
void Server::Impl::OnAcceptFailed(const error_code& ec) {
  const auto now = std::chrono::steady_clock::now();
  if (now - io_->warned > kAcceptWarningPause) {
    io_->warned = now;
    LOG_WARNING("http: cannot accept a connection: {}", ec.message());
  }
  if (ec != asio::error::no_descriptors) return;
  io_->spare.Close();
  error_code failed;
  io_->acceptor.non_blocking(true, failed);
  for (int i = 0; i < 64 && !failed; ++i) {
    ClientStream::Socket socket(io_->context);
    io_->acceptor.accept(socket, failed);
    if (!failed) RefuseConnection(std::move(socket));
  }
  io_->spare.Open();
}

void Server::Impl::Adopt(ClientStream::Socket socket) {
  error_code ignored;
  if (options_.uds.empty()) socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  // Held during Start, so that a connection cannot end before its insertion into connections_.
  std::lock_guard lock(mutex_);
  const size_t regular = connections_.size() - spares_.size() - evicted_.size();
  const bool spare = regular >= options_.max_connections;
  if (spare && !MakeSpareRoom()) {
    RefuseConnection(std::move(socket));
    return;
  }
  const ConnectionContext context{options_, router_,  open_requests_,         responses_,
                                  budget_,  workers_, tls_ ? &*tls_ : nullptr};
  auto connection = Connection::Start(context, std::move(socket), spare,
                                      [this](Connection* ended) { Remove(ended); });
  Connection* const key = connection.get();
  if (spare) spares_.push_back(key);
  connections_.emplace(key, std::move(connection));
}

// Frees a spare slot for another connection beyond the limit. If all spare slots are in use, closes
// the oldest spare connection that has no response in progress, so that clients without a request
// do not block health probes. Returns false if all of them have a response in progress, or if too
// many are still closing.
bool Server::Impl::MakeSpareRoom() {
  if (spares_.size() < kSpareConnections) return true;
  if (evicted_.size() >= kSpareConnections) return false;
  const auto found = std::find_if(spares_.begin(), spares_.end(),
                                  [](Connection* c) { return c->CloseUnlessAnswering(); });
  if (found == spares_.end()) return false;
  evicted_.push_back(*found);
  spares_.erase(found);
  return true;
}

void Server::Impl::Remove(Connection* connection) {
  std::lock_guard lock(mutex_);
  std::erase(spares_, connection);
  std::erase(evicted_, connection);
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
  workers_->Stop();
  if (!options_.uds.empty()) unlink(options_.uds.c_str());
  io_.reset();
}

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Server::~Server() { impl_->Stop(std::chrono::milliseconds(0)); }

void Server::Route(std::string method, std::string path, Handler handler, Access access) {
  impl_->Route(std::move(method), std::move(path), std::move(handler), access);
}

void Server::Start() { impl_->Start(); }

int Server::port() const { return impl_->port(); }

void Server::StopAccepting() { impl_->StopAccepting(); }

void Server::CommentStreams(const std::string& text) { impl_->CommentStreams(text); }

size_t Server::open_requests() const { return impl_->open_requests(); }

const ResponseCounts& Server::responses() const { return impl_->responses(); }

const Router& Server::router() const { return impl_->router(); }

void Server::Stop() { impl_->Stop(impl_->drain_timeout()); }

}  // namespace switchyard::http
