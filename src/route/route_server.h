// `switchyard route`: one address for several servers of a model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "route/policy.h"
#include "route/proxy.h"
#include "route/worker_set.h"
#include "server/http/http_server.h"

namespace switchyard::route {

struct RouteOptions {
  std::vector<std::string> worker_urls;
  std::string policy = "cache_aware";
  CacheAwareOptions cache_aware;
  ProxyOptions proxy;
  int failure_threshold = 3;
  uint64_t seed = 0;
};

// Forwards every request to a worker, except those about the router itself:
//   GET    /health, /readiness        200 if a worker is healthy, else 503
//   GET    /liveness                  200
//   GET    /metrics                   metrics of the router, in Prometheus' text format
//   GET    /workers, /list_workers    the workers
//   POST   /workers {"url": …}, /add_worker?url=…
//   DELETE /workers/{url}, POST /remove_worker?url=…
//   POST   /flush_cache, /abort_request, /start_profile, /stop_profile    to all workers
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
  void AddWorker(const std::string& url, const http::Responder& responder);
  void RemoveWorker(const std::string& url, const http::Responder& responder);
  std::string MetricsText() const;

  WorkerSet workers_;
  std::unique_ptr<Policy> policy_;
  Proxy proxy_;
  http::Server server_;  // declared last, so it stops first
};

}  // namespace switchyard::route
