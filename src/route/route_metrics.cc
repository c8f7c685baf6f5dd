#include "route/route_server.h"
#include "server/http/responses.h"
#include "server/metrics/page.h"

namespace switchyard::route {
namespace {

using metrics::Page;

void AddCounts(const ProxyCounts& counts, Page& page) {
  const auto count = [&](const char* name, const char* help, uint64_t value) {
    page.Counter(name, help, {}, static_cast<double>(value));
  };
  count("switchyard_route_requests_total", "Requests that were forwarded or refused",
        counts.requests);
  count("switchyard_route_retries_total", "Attempts after the first one of a request",
        counts.retries);
  count("switchyard_route_no_worker_total", "Attempts that found no healthy worker",
        counts.without_worker);
  count("switchyard_route_cut_streams_total",
        "Event streams that ended because their worker failed", counts.cut_streams);
  count("switchyard_route_replayed_streams_total",
        "Event streams that another pair of workers continued", counts.replays);
}

void AddWorker(const WorkerState& worker, Page& page) {
  const metrics::Labels labels = {{"worker", worker.url.text}, {"worker_type", Name(worker.role)}};
  page.Gauge("switchyard_route_worker_healthy", "1 if the worker gets requests", labels,
             worker.healthy ? 1 : 0);
  page.Gauge("switchyard_route_worker_open_requests", "Requests in flight at the worker", labels,
             static_cast<double>(worker.open));
  page.Counter("switchyard_route_worker_requests_total", "Requests sent to the worker", labels,
               static_cast<double>(worker.requests));
  page.Counter("switchyard_route_worker_failures_total",
               "Failed requests and health checks of the worker", labels,
               static_cast<double>(worker.failures));
}

}  // namespace

std::string MetricsText(const ProxyCounts& counts, const std::vector<WorkerState>& workers,
                        const http::Server& server) {
  Page page;
  page.Gauge("switchyard_route_info", "1; version of the router", {{"version", SWITCHYARD_VERSION}},
             1);
  AddCounts(counts, page);
  for (const WorkerState& worker : workers) AddWorker(worker, page);
  page.Gauge("switchyard_route_http_open_requests", "HTTP requests without a complete response", {},
             static_cast<double>(server.open_requests()));
  for (const auto& [kind, number] : server.responses().Read())
    page.Counter(
        "switchyard_route_http_responses_total",
        "HTTP responses of the router by route, method and status",
        {{"route", kind.route}, {"method", kind.method}, {"status", std::to_string(kind.status)}},
        static_cast<double>(number));
  return page.Text();
}

}  // namespace switchyard::route
