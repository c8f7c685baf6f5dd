// Metrics of the router.
#pragma once

#include <string>
#include <vector>

#include "route/proxy.h"
#include "route/worker_set.h"
#include "server/http/http_server.h"

namespace switchyard::route {

// The page of GET /metrics, in the text format of Prometheus. docs/routing.md lists the names.
std::string MetricsText(const ProxyCounts& counts, const std::vector<WorkerState>& workers,
                        const http::Server& server);

}  // namespace switchyard::route
