// `switchyard route`: one address for several servers of a model, and its metrics.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "route/policy.h"
#include "route/proxy.h"
#include "route/worker_set.h"
#include "server/http/http_server.h"

namespace switchyard::route {

// `switchyard route`: one address for several servers of a model.

struct RouteOptions {
  std::vector<std::string> worker_urls;
  // Prefill workers, each optionally followed by the port of its bootstrap server, and decode
  // workers. Without them, the workers compute whole requests.
  std::vector<std::string> prefill, decode;
  std::string policy = "cache_aware";
  std::string prefill_policy, decode_policy;  // empty: `policy`
  CacheAwareOptions cache_aware;
  ProxyOptions proxy;
  int failure_threshold = 3;
  uint64_t seed = 0;

  bool pairs() const { return !prefill.empty() || !decode.empty(); }
};

struct NewWorker {
  std::string url;
  WorkerRole role = WorkerRole::kPlain;
  std::optional<int> bootstrap_port;
};
// Reads RouteOptions::prefill. Error kInvalid for a port without a URL, or a bad port.
std::vector<NewWorker> ParsePrefillWorkers(const std::vector<std::string>& words);

// Forwards every request to a worker, except those about the router itself:
//   GET    /health, /readiness        200 if a worker is healthy, else 503
//   GET    /liveness                  200
//   GET    /metrics                   metrics of the router
//   GET    /workers, /list_workers    the workers
//   POST   /workers {"url": …, "worker_type": …, "bootstrap_port": …}, /add_worker?url=…
//   DELETE /workers/{url}, POST /remove_worker?url=…
//   POST   /flush_cache, /pause_generation and the other controls, GET /get_load    to all workers
//   POST   /open_session      to one worker, which then gets all requests of the session
// The names follow SGLang's router.
//
// Call Start and Stop from the owner's thread.
class RouteServer {
 public:
  // Throws Error kInvalid for a bad URL or policy.
  RouteServer(const RouteOptions& options, http::ServerOptions http);
  ~RouteServer();

  void Start();
  void Stop();  // finishes the responses in flight (ServerOptions::drain_timeout)
  int port() const { return server_.port(); }
  std::vector<WorkerState> Workers() const { return workers_.All(); }

 private:
  void AddRoutes();
  void AddWorker(const NewWorker& worker, const http::Responder& responder);
  void RemoveWorker(const std::string& url, const http::Responder& responder);

  WorkerSet workers_;
  std::unique_ptr<Policy> policy_, prefill_policy_;  // the second is null without pairs
  Proxy proxy_;
  http::Server server_;  // declared last, so it stops first
};

// Metrics of the router.

// The page of GET /metrics, in the text format of Prometheus. docs/routing.md lists the names.
std::string MetricsText(const ProxyCounts& counts, const std::vector<WorkerState>& workers,
                        const http::Server& server);

}  // namespace switchyard::route
