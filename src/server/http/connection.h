// One client's connection. Internal to this folder: with its .cc files the only place that sees
// Boost.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <functional>
#include <memory>

#include "server/http/http_server.h"
#include "server/http/router.h"

namespace switchyard::http {

// What all connections of a server share; outlives them.
struct ConnectionContext {
  const ServerOptions& options;
  const Router& router;
  std::atomic<size_t>& open_requests;
};

// How far a server is on its way to the end; a connection only ever moves on.
enum class Phase {
  kServing,
  kLastRequest,  // a connection ends with its next response
  kDraining,     // an idle connection ends at once, another one with the response under way
  kClosed,       // every connection ends at once
};

// Handle to a connection that runs by itself on the executor of its socket, which must be a strand.
class Connection {
 public:
  virtual ~Connection() = default;

  // From any thread.
  virtual void Advance(Phase phase) = 0;

  // `on_end` is called on the strand when the connection has ended and its socket is closed; not
  // within Start.
  static std::shared_ptr<Connection> Start(const ConnectionContext& context,
                                           boost::asio::ip::tcp::socket socket,
                                           std::function<void(Connection*)> on_end);
};

}  // namespace switchyard::http
