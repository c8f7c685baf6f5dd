#include "route/route_server.h"

#include <algorithm>
#include <utility>

#include "core/bounded_json.h"
#include "core/error.h"
#include "core/log.h"
#include "server/http/error_body.h"

namespace switchyard::route {
namespace {

using http::Access;
using http::Request;
using http::Responder;
using nlohmann::ordered_json;
using RequestPtr = std::shared_ptr<const Request>;

ordered_json Describe(const WorkerState& worker) {
  ordered_json out = {{"url", worker.url.text},
                      {"is_healthy", worker.healthy},
                      {"load", worker.open},
                      {"requests", worker.requests},
                      {"failures", worker.failures}};
  if (!worker.last_failure.empty()) out["last_failure"] = worker.last_failure;
  return out;
}

std::string UrlOf(const Request& request) {
  const auto found = request.query.find("url");
  if (found == request.query.end() || found->second.empty())
    throw Invalid("url: the query parameter is missing, as in ?url=http://127.0.0.1:30001");
  return found->second;
}

std::string UrlInBody(const Request& request) {
  const nlohmann::json body = ParseBoundedJson(request.body, "body");
  if (!body.is_object() || !body.contains("url") || !body["url"].is_string())
    throw Invalid(R"(want {{"url": "http://HOST:PORT"}})");
  for (const auto& [name, value] : body.items())
    if (name != "url") throw Invalid("unknown field {}; the only field is url", name);
  return body["url"].get<std::string>();
}

}  // namespace

RouteServer::RouteServer(const RouteOptions& options, http::ServerOptions http)
    : workers_(options.failure_threshold),
      policy_(MakePolicy(options.policy, options.cache_aware, options.seed)),
      proxy_(options.proxy, workers_, *policy_),
      server_(std::move(http)) {
  for (const std::string& url : options.worker_urls) workers_.Add(ParseWorkerUrl(url));
  AddRoutes();
}

RouteServer::~RouteServer() { server_.Stop(); }

void RouteServer::Start() {
  server_.Start();
  for (const WorkerState& worker : workers_.All()) proxy_.Watch(worker.id);
}

void RouteServer::Stop() { server_.Stop(); }

void RouteServer::AddWorker(const std::string& url, const Responder& responder) {
  const int64_t id = workers_.Add(ParseWorkerUrl(url));
  proxy_.Watch(id);
  LOG_INFO("worker {}: added", ParseWorkerUrl(url).text);
  responder.Send(200, http::kJson, ordered_json{{"added", ParseWorkerUrl(url).text}}.dump());
}

void RouteServer::RemoveWorker(const std::string& url, const Responder& responder) {
  workers_.Remove(url);
  LOG_INFO("worker {}: removed; its open requests continue", ParseWorkerUrl(url).text);
  responder.Send(200, http::kJson, ordered_json{{"removed", ParseWorkerUrl(url).text}}.dump());
}

void RouteServer::AddRoutes() {
  const auto ready = [this](const RequestPtr&, const Responder& responder) {
    const auto all = workers_.All();
    const auto healthy = std::ranges::count_if(all, &WorkerState::healthy);
    if (healthy == 0) {
      responder.SendError(503, fmt::format("none of {} workers is healthy", all.size()));
      return;
    }
    responder.Send(
        200, http::kJson,
        ordered_json{{"status", "ok"}, {"workers", all.size()}, {"healthy", healthy}}.dump());
  };
  server_.Route("GET", "/health", ready);
  server_.Route("GET", "/readiness", ready);
  server_.Route("GET", "/liveness", [](const RequestPtr&, const Responder& responder) {
    responder.Send(200, http::kJson, R"({"status":"ok"})");
  });
  server_.Route("GET", "/metrics", [this](const RequestPtr&, const Responder& responder) {
    responder.Send(200, "text/plain; version=0.0.4; charset=utf-8", MetricsText());
  });

  const auto list = [this](const RequestPtr&, const Responder& responder) {
    ordered_json workers = ordered_json::array();
    for (const WorkerState& worker : workers_.All()) workers.push_back(Describe(worker));
    responder.Send(200, http::kJson, ordered_json{{"workers", std::move(workers)}}.dump());
  };
  server_.Route("GET", "/workers", list, Access::kControl);
  server_.Route("GET", "/list_workers", list, Access::kControl);
  server_.Route(
      "POST", "/workers",
      [this](const RequestPtr& r, const Responder& to) { AddWorker(UrlInBody(*r), to); },
      Access::kControl);
  server_.Route(
      "POST", "/add_worker",
      [this](const RequestPtr& r, const Responder& to) { AddWorker(UrlOf(*r), to); },
      Access::kControl);
  server_.Route(
      "DELETE", "/workers/{url}",
      [this](const RequestPtr& r, const Responder& to) { RemoveWorker(r->params.at("url"), to); },
      Access::kControl);
  server_.Route(
      "POST", "/remove_worker",
      [this](const RequestPtr& r, const Responder& to) { RemoveWorker(UrlOf(*r), to); },
      Access::kControl);

  for (const char* path : {"/flush_cache", "/abort_request", "/start_profile", "/stop_profile"})
    server_.Route(
        "POST", path, [this](const RequestPtr& r, const Responder& to) { proxy_.Broadcast(r, to); },
        Access::kControl);
  const auto forward = [this](const RequestPtr& r, const Responder& to) { proxy_.Forward(r, to); };
  for (const char* method : {"GET", "POST", "PUT", "PATCH", "DELETE"})
    server_.Route(method, "/{path}", forward);
  server_.Route("GET", "/", forward);
}

std::string RouteServer::MetricsText() const {
  std::string text;
  const auto family = [&](const char* name, const char* type, const char* help) {
    text += fmt::format("# HELP switchyard_route_{0} {1}\n# TYPE switchyard_route_{0} {2}\n", name,
                        help, type);
  };
  const auto single = [&](const char* name, const char* help, uint64_t value) {
    family(name, "counter", help);
    text += fmt::format("switchyard_route_{} {}\n", name, value);
  };
  const ProxyCounts& counts = proxy_.counts();
  single("requests_total", "Requests that were forwarded or refused.", counts.requests);
  single("retries_total", "Attempts after the first one of a request.", counts.retries);
  single("no_worker_total", "Attempts that found no healthy worker.", counts.without_worker);
  single("cut_streams_total", "Event streams that ended because their worker failed.",
         counts.cut_streams);
  const auto all = workers_.All();
  const auto each = [&](const char* name, const char* type, const char* help, auto value) {
    family(name, type, help);
    for (const WorkerState& worker : all)
      text += fmt::format("switchyard_route_{}{{worker=\"{}\"}} {}\n", name, worker.url.text,
                          value(worker));
  };
  each("worker_healthy", "gauge", "1 if the worker gets requests.",
       [](const WorkerState& w) { return w.healthy ? 1 : 0; });
  each("worker_open_requests", "gauge", "Requests in flight at the worker.",
       [](const WorkerState& w) { return w.open; });
  each("worker_requests_total", "counter", "Requests sent to the worker.",
       [](const WorkerState& w) { return w.requests; });
  each("worker_failures_total", "counter", "Failed requests and health checks of the worker.",
       [](const WorkerState& w) { return w.failures; });
  return text;
}

}  // namespace switchyard::route
