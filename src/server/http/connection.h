// One client's connection. Internal to this folder.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#include "server/http/client_stream.h"
#include "server/http/http_server.h"
#include "server/http/memory_budget.h"
#include "server/http/router.h"
#include "server/http/worker_pool.h"

namespace switchyard::http {

// What all connections of a server share; outlives them.
struct ConnectionContext {
  const ServerOptions& options;
  const Router& router;
  std::atomic<size_t>& open_requests;
  std::shared_ptr<MemoryBudget> budget;
  std::shared_ptr<WorkerPool> workers;
  const TlsContext* tls = nullptr;
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
  // within Start. `spare`: the server has as many connections as it takes, and this one gets one
  // answer: that of a probe (NeedsNoKey), or a 503.
  static std::shared_ptr<Connection> Start(const ConnectionContext& context,
                                           ClientStream::Socket socket, bool spare,
                                           std::function<void(Connection*)> on_end);
};

}  // namespace switchyard::http
