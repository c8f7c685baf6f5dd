// `switchyard route`: a router in front of several servers.
#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/commands.h"
#include "core/command_line.h"
#include "core/error.h"
#include "core/log.h"
#include "route/route_server.h"
#include "server/args/args.h"
#include "server/args/command_words.h"
#include "server/http_setup.h"
#include "server/service_manager.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;
using route::RouteOptions;

struct RouteArgs {
  RouteOptions route;
  ServerArgs server;  // only the fields of HTTP flags are used
  std::string log_level = "info";
};

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::optional<RouteArgs> Parse(const std::vector<std::string>& words) {
  constexpr const char* kRouting = "Routing";
  constexpr const char* kServer = "HTTP server";
  RouteArgs a;
  RouteOptions& r = a.route;
  double connect = 5, silence = 1800, interval = 5, health_timeout = 5;
  double tree_mb = 64, pair_wait = 10;
  CommandLine app(
      "Route requests to several servers of a model. Clients use the router's address as if it "
      "were a server's. Workers that are down or restarting get no requests.",
      "switchyard route");
  app.List("--worker-urls", r.worker_urls, kRouting,
           "Servers, as http://HOST:PORT; more can be added by POST /workers");
  app.Option("--prefill", r.prefill,
             "Prefill workers (serve --disaggregation-mode prefill), each as http://HOST:PORT and "
             "optionally its --disaggregation-bootstrap-port; may be repeated")
      .Group(kRouting);
  app.Option("--decode", r.decode,
             "Decode workers (serve --disaggregation-mode decode), as http://HOST:PORT; may be "
             "repeated")
      .Group(kRouting);
  for (auto [flag, policy] : {std::pair("--prefill-policy", &r.prefill_policy),
                              std::pair("--decode-policy", &r.decode_policy)})
    app.Flag(flag, *policy, kRouting, "As --policy, for workers of one kind; default: --policy")
        .OneOf({"cache_aware", "power_of_two", "round_robin", "random"});
  app.Flag(
         "--policy", r.policy, kRouting,
         "cache_aware (the worker that has seen the longest prefix of the prompt, unless the load "
         "is unbalanced), power_of_two (the less loaded of two random workers), round_robin or "
         "random")
      .OneOf({"cache_aware", "power_of_two", "round_robin", "random"});
  app.Flag("--cache-threshold", r.cache_aware.cache_threshold, kRouting,
           "cache_aware: minimum fraction of a prompt that a worker must have seen to be preferred")
      .Range(0.0, 1.0);
  app.Flag("--balance-abs-threshold", r.cache_aware.balance_abs_threshold, kRouting,
           "cache_aware: the load is unbalanced if the largest and the smallest number of open "
           "requests of a worker differ by more than this, and their ratio exceeds "
           "--balance-rel-threshold")
      .NonNegative();
  app.Flag("--balance-rel-threshold", r.cache_aware.balance_rel_threshold, kRouting,
           "cache_aware: limit of the ratio of the largest to the smallest number of open requests "
           "of a worker; see --balance-abs-threshold")
      .Range(1.0, 1e6);
  app.Flag("--max-tree-mb", tree_mb, kRouting,
           "cache_aware: maximum size in MiB of the tree of prompts; the least recently used are "
           "removed")
      .Range(0.1, 65536.0);
  app.Flag("--max-retries", r.proxy.max_retries, kRouting,
           "Maximum retries on other workers for a request that fails before its first event")
      .Range(0, 100);
  app.Flag("--health-check-interval", interval, kRouting, "Seconds between two GET /health")
      .Range(0.05, 3600.0);
  app.Flag("--health-check-timeout", health_timeout, kRouting,
           "Timeout of a health check in seconds")
      .Range(0.05, 3600.0);
  app.Flag("--health-failure-threshold", r.failure_threshold, kRouting,
           "Consecutive failures after which a worker gets no requests")
      .Range(1, 1000);
  app.Flag("--connect-timeout", connect, kRouting,
           "Timeout of a connection attempt to a worker in seconds")
      .Range(0.01, 3600.0);
  app.Flag("--worker-timeout", silence, kRouting,
           "A request fails after this many seconds without a byte from its worker")
      .Range(0.01, 86400.0);
  app.Flag(
         "--pair-wait", pair_wait, kRouting,
         "Seconds that a request whose prefill or decode worker has failed waits for healthy ones")
      .NonNegative();
  app.Flag("--worker-api-key", r.proxy.worker_key, kRouting,
           "API key that is sent to workers; default: the client's key");
  app.Flag("--seed", r.seed, kRouting, "Seed of power_of_two and random");
  app.Flag("--host", a.server.host, kServer, "Address to listen on; 0.0.0.0 for all");
  app.Flag("--port", a.server.port, kServer, "Port to listen on; 0: any free port").Range(0, 65535);
  AddHttpFlags(app, a.server.http);
  app.Flag("--max-body-mb", a.server.max_body_mb, kServer,
           "Maximum request body in MiB; larger ones get 413")
      .Range(1e-3, 1e6);
  app.Flag("--drain-timeout", a.server.drain_timeout_seconds, kServer,
           "Seconds after SIGTERM until running requests are aborted")
      .NonNegative();
  app.Switch("--log-requests", a.server.observe.log_requests, kServer, "Logs one line per request");
  app.Flag("--log-level", a.log_level, kServer, "debug, info, warning or error")
      .OneOf({"debug", "info", "warning", "error"});
  if (!ParseWords(app, words)) return std::nullopt;
  for (const char* flag : {"--request-queue-timeout", "--request-timeout"})
    if (app.Given(flag))
      throw Invalid(
          "{} is a flag of the workers, not of the router; set it for serve, or use "
          "--worker-timeout",
          flag);
  r.proxy.timeouts = {.connect = Milliseconds(connect), .silence = Milliseconds(silence)};
  r.proxy.health_interval = Milliseconds(interval);
  r.proxy.health_timeout = Milliseconds(health_timeout);
  r.proxy.pair_wait = Milliseconds(pair_wait);
  if (r.pairs() && (r.prefill.empty() || r.decode.empty()))
    throw Invalid("--prefill and --decode: want at least one worker of each kind");
  r.cache_aware.max_tree_bytes = static_cast<size_t>(tree_mb * (1 << 20));
  return a;
}

}  // namespace

int RunRoute(const std::vector<std::string>& words) {
  const auto args = Parse(words);
  if (!args) return 0;
  InitLog(args->log_level);
  const StopSignals signals;  // before threads exist
  http::ServerOptions http = SetUpHttp(args->server);
  http.drain_timeout = Milliseconds(args->server.drain_timeout_seconds);
  // A load balancer sends health checks without an API key.
  http.paths_without_key = {"/health", "/readiness", "/liveness"};
  route::RouteServer server(args->route, std::move(http));
  server.Start();
  const std::string& host = args->server.host;
  if (args->server.http.uds.empty())
    fmt::print("switchyard route is ready at {}://{}:{} ({} workers, {})\n",
               args->server.http.ssl_certfile.empty() ? "http" : "https",
               host.find(':') == std::string::npos ? host : "[" + host + "]", server.port(),
               server.Workers().size(), args->route.policy);
  else
    fmt::print("switchyard route is ready at {}\n", args->server.http.uds);
  std::fflush(stdout);
  if (server.Workers().empty())
    LOG_WARNING("there are no workers: add some by POST /workers or --worker-urls");
  while (signals.Wait(1h) == 0) {
  }
  LOG_INFO("stopping as soon as the open requests have ended");
  server.Stop();
  return 0;
}

}  // namespace switchyard
