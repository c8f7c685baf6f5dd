#include "route/route_server.h"

#include <algorithm>
#include <charconv>
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
  ordered_json out = {{"url", worker.url.text},       {"worker_type", Name(worker.role)},
                      {"is_healthy", worker.healthy}, {"load", worker.open},
                      {"requests", worker.requests},  {"failures", worker.failures}};
  if (!worker.last_failure.empty()) out["last_failure"] = worker.last_failure;
  return out;
}

std::string UrlOf(const Request& request) {
  const auto found = request.query.find("url");
  if (found == request.query.end() || found->second.empty())
    throw Invalid("url: the query parameter is missing, as in ?url=http://127.0.0.1:30001");
  return found->second;
}

int BootstrapPort(int64_t port) {
  if (port < 1 || port > 65535) throw Invalid("bootstrap_port is {}, want 1 to 65535", port);
  return static_cast<int>(port);
}

WorkerRole RoleOf(const std::string& type) {
  if (type == "regular") return WorkerRole::kPlain;
  if (type == "prefill") return WorkerRole::kPrefill;
  if (type == "decode") return WorkerRole::kDecode;
  throw Invalid("worker_type is {}, want regular, prefill or decode", type);
}

NewWorker WorkerInBody(const Request& request) {
  const nlohmann::json body = ParseBoundedJson(request.body, "body");
  if (!body.is_object() || !body.contains("url") || !body["url"].is_string())
    throw Invalid(R"(want {{"url": "http://HOST:PORT"}})");
  NewWorker worker{.url = body["url"].get<std::string>()};
  for (const auto& [name, value] : body.items()) {
    if (name == "url") continue;
    if (name == "worker_type" && value.is_string()) {
      worker.role = RoleOf(value.get<std::string>());
    } else if (name == "bootstrap_port" && value.is_number_integer()) {
      worker.bootstrap_port = BootstrapPort(value.get<int64_t>());
    } else if (name != "bootstrap_port" || !value.is_null()) {
      throw Invalid(
          "unknown field {}, or it has another type; want url, worker_type (a string) "
          "and bootstrap_port (a number)",
          name);
    }
  }
  return worker;
}

// Requests that are sent to all workers.
constexpr const char* kControls[] = {"/flush_cache",
                                     "/abort_request",
                                     "/start_profile",
                                     "/stop_profile",
                                     "/pause_generation",
                                     "/continue_generation",
                                     "/slow_down",
                                     "/set_internal_state",
                                     "/configure_logging",
                                     "/freeze_gc",
                                     "/release_memory_occupation",
                                     "/resume_memory_occupation",
                                     "/update_weights_from_disk",
                                     "/update_weights_from_tensor",
                                     "/update_weight_version",
                                     "/weights_checker",
                                     "/start_expert_distribution_record",
                                     "/stop_expert_distribution_record",
                                     "/dump_expert_distribution_record",
                                     "/eplb/rebalance"};

const std::string& OrElse(const std::string& own, const std::string& common) {
  return own.empty() ? common : own;
}

}  // namespace

std::vector<NewWorker> ParsePrefillWorkers(const std::vector<std::string>& words) {
  std::vector<NewWorker> workers;
  for (const std::string& word : words) {
    int64_t port = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), port);
    if (error != std::errc() || end != word.data() + word.size()) {
      workers.push_back({.url = word, .role = WorkerRole::kPrefill});
    } else if (workers.empty() || workers.back().bootstrap_port) {
      throw Invalid("--prefill {}: want a URL before the bootstrap port", word);
    } else {
      workers.back().bootstrap_port = BootstrapPort(port);
    }
  }
  return workers;
}

RouteServer::RouteServer(const RouteOptions& options, http::ServerOptions http)
    : workers_(options.failure_threshold),
      policy_(MakePolicy(OrElse(options.decode_policy, options.policy), options.cache_aware,
                         options.seed)),
      prefill_policy_(options.pairs() ? MakePolicy(OrElse(options.prefill_policy, options.policy),
                                                   options.cache_aware, options.seed + 1)
                                      : nullptr),
      proxy_(options.proxy, workers_, *policy_, prefill_policy_.get()),
      server_(std::move(http)) {
  if (options.pairs() && !options.worker_urls.empty())
    throw Invalid("--worker-urls and --prefill, --decode exclude each other");
  for (const std::string& url : options.worker_urls) workers_.Add(ParseWorkerUrl(url));
  for (const NewWorker& worker : ParsePrefillWorkers(options.prefill))
    workers_.Add(ParseWorkerUrl(worker.url), worker.role, worker.bootstrap_port);
  for (const std::string& url : options.decode)
    workers_.Add(ParseWorkerUrl(url), WorkerRole::kDecode);
  AddRoutes();
}

RouteServer::~RouteServer() { server_.Stop(); }

void RouteServer::Start() {
  server_.Start();
  for (const WorkerState& worker : workers_.All()) proxy_.Watch(worker.id);
}

void RouteServer::Stop() { server_.Stop(); }

void RouteServer::AddWorker(const NewWorker& worker, const Responder& responder) {
  if ((worker.role == WorkerRole::kPlain) != (prefill_policy_ == nullptr))
    throw Invalid("worker_type is {}: this router was started {} --prefill and --decode",
                  Name(worker.role), prefill_policy_ ? "with" : "without");
  const WorkerUrl url = ParseWorkerUrl(worker.url);
  const int64_t id = workers_.Add(url, worker.role, worker.bootstrap_port);
  proxy_.Watch(id);
  LOG_INFO("worker {}: added", url.text);
  responder.Send(200, http::kJson, ordered_json{{"added", url.text}}.dump());
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
    const auto has = [&](WorkerRole role) {
      return std::ranges::any_of(all,
                                 [&](const WorkerState& w) { return w.healthy && w.role == role; });
    };
    if (prefill_policy_ && !(has(WorkerRole::kPrefill) && has(WorkerRole::kDecode))) {
      responder.SendError(503, "no healthy prefill worker, or no healthy decode worker");
      return;
    }
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
    responder.Send(200, "text/plain; version=0.0.4; charset=utf-8",
                   MetricsText(proxy_.counts(), workers_.All(), server_));
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
      [this](const RequestPtr& r, const Responder& to) { AddWorker(WorkerInBody(*r), to); },
      Access::kControl);
  server_.Route(
      "POST", "/add_worker",
      [this](const RequestPtr& r, const Responder& to) { AddWorker({.url = UrlOf(*r)}, to); },
      Access::kControl);
  server_.Route(
      "DELETE", "/workers/{url}",
      [this](const RequestPtr& r, const Responder& to) { RemoveWorker(r->params.at("url"), to); },
      Access::kControl);
  server_.Route(
      "POST", "/remove_worker",
      [this](const RequestPtr& r, const Responder& to) { RemoveWorker(UrlOf(*r), to); },
      Access::kControl);

  const auto broadcast = [this](const RequestPtr& r, const Responder& to) {
    proxy_.Broadcast(r, to);
  };
  for (const char* path : kControls) server_.Route("POST", path, broadcast, Access::kControl);
  server_.Route("GET", "/get_load", broadcast);
  const auto forward = [this](const RequestPtr& r, const Responder& to) { proxy_.Forward(r, to); };
  for (const char* method : {"GET", "POST", "PUT", "PATCH", "DELETE"})
    server_.Route(method, "/{path}", forward);
  server_.Route("GET", "/", forward);
  // Controls of one worker.
  for (const char* path : {"/open_session", "/close_session", "/scale_elastic_ep"})
    server_.Route("POST", path, forward, Access::kControl);
}

}  // namespace switchyard::route
