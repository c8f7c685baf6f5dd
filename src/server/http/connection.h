// One client's connection. Internal to this folder.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "server/http/client_stream.h"
#include "server/http/http_server.h"
#include "server/http/memory_budget.h"
#include "server/http/responses.h"
#include "server/http/router.h"
#include "server/http/worker_pool.h"

namespace switchyard::http {

// State shared by all connections of a server. Outlives them.
struct ConnectionContext {
  const ServerOptions& options;
  const Router& router;
  std::atomic<size_t>& open_requests;
  ResponseCounts& responses;
  std::shared_ptr<MemoryBudget> budget;
  std::shared_ptr<WorkerPool> workers;
  const TlsContext* tls = nullptr;
};

// Shutdown phase of a server. A connection never returns to an earlier phase.
enum class Phase {
  kServing,
  kLastRequest,  // a connection is closed after its next response
  kDraining,     // idle connections are closed immediately, others after the current response
  kClosed,       // all connections are closed immediately
};

// Handle to a connection. The connection runs as a coroutine on the executor of its socket, which
// must be a strand.
class Connection {
 public:
  virtual ~Connection() = default;

  // From any thread.
  virtual void Advance(Phase phase) = 0;
  // Closes the connection soon, unless it is answering a request. Returns false if it is answering.
  // From any thread.
  virtual bool CloseUnlessAnswering() = 0;
  // Calls Exchange::Comment of the present response. From any thread.
  virtual void Comment(const std::string& text) = 0;

  // Starts a connection. Calls `on_end` on the strand after the connection has ended and its socket
  // is closed, never within Start. `spare`: the connection exceeds the limit, so it gets a single
  // response: that of a probe (IsPublicPath), or a 503.
  static std::shared_ptr<Connection> Start(const ConnectionContext& context,
                                           ClientStream::Socket socket, bool spare,
                                           std::function<void(Connection*)> on_end);
};

}  // namespace switchyard::http
