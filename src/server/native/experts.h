// Where the experts' load is seen: recording, GET /expert_distribution, GET /metrics.
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::native {

// SGLang's start_, stop_ and dump_expert_distribution_record (GET or POST), and
// GET /expert_distribution.
void RegisterExperts(http::Server& server, Service& service);

// GET /metrics in Prometheus' text format.
void RegisterMetrics(http::Server& server, Service& service);

// kUnavailable while loading, draining or without ranks.
void RequireReady(const Service& service);

}  // namespace switchyard::native
