// One HTTP exchange with a worker.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "route/worker_set.h"
#include "server/http/http_server.h"

namespace switchyard::route {

// A failed exchange. `refused` tells apart failures before and after the connection was
// established.
struct UpstreamError : std::runtime_error {
  UpstreamError(bool refused, const std::string& what)
      : std::runtime_error(what), refused(refused) {}
  bool refused;  // no connection was established, so the worker has not received the request
};

// A response exceeds the router's limit. The worker has not failed, and another worker would send
// the same response. So this is no UpstreamError.
struct ResponseTooLarge : std::runtime_error {
  explicit ResponseTooLarge(size_t limit);
};

struct UpstreamTimeouts {
  std::chrono::milliseconds connect{5'000};
  std::chrono::milliseconds silence{1'800'000};  // time without any byte from the worker
};

// A connection to a worker with one request on it. Use on the proxy's thread.
class Upstream {
 public:
  using Parser = boost::beast::http::response_parser<boost::beast::http::string_body>;

  Upstream(boost::beast::tcp_stream stream, UpstreamTimeouts timeouts)
      : stream_(std::move(stream)), timeouts_(timeouts) {}

  boost::asio::awaitable<void> Connect(const WorkerUrl& worker);
  // Sends the whole request, and reads the head of the response.
  boost::asio::awaitable<void> Send(const std::string& head, std::string_view body);

  int status() const { return static_cast<int>(parser_->get().result_int()); }
  std::string Header(std::string_view name) const;
  bool has_length() const { return parser_->content_length().has_value(); }
  // Headers for the client. Hop-by-hop headers, and headers that the router's own server writes,
  // are left out.
  http::Headers ForwardedHeaders() const;

  // Reads the next part of the body, with the transfer coding removed. Returns "" at the end.
  boost::asio::awaitable<std::string> Read();
  // Reads the rest of the body. Throws ResponseTooLarge if it exceeds `limit` bytes.
  boost::asio::awaitable<std::string> ReadAll(size_t limit);
  bool reusable() const { return parser_ && parser_->is_done() && parser_->keep_alive(); }

  // Makes the exchange end with an UpstreamError: immediately if it waits for the socket, else at
  // its next operation.
  void Cancel() {
    cancelled_ = true;
    stream_.cancel();
  }
  bool cancelled() const { return cancelled_; }
  boost::beast::tcp_stream TakeStream() { return std::move(stream_); }

 private:
  void CheckCancelled() const;

  boost::beast::tcp_stream stream_;
  UpstreamTimeouts timeouts_;
  bool cancelled_ = false;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;  // parser of the response; absent until the head is read
};

// Open connections without a request, by worker. Use on the proxy's thread.
class IdleConnections {
 public:
  void Put(int64_t worker, boost::beast::tcp_stream stream);
  std::unique_ptr<boost::beast::tcp_stream> Take(int64_t worker);  // null: none
  void Drop(int64_t worker);

 private:
  static constexpr size_t kMostOfWorker = 64;
  std::map<int64_t, std::deque<boost::beast::tcp_stream>> streams_;
};

// The head of the request that is sent to a worker. `worker_key` replaces the client's
// Authorization, unless it is empty.
std::string RequestHead(const http::Request& request, const WorkerUrl& worker,
                        const std::string& worker_key);

}  // namespace switchyard::route
