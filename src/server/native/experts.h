// Endpoints of expert load: recording, GET /expert_distribution and GET /metrics.
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::native {

// SGLang's POST /start_, /stop_ and /dump_expert_distribution_record, and GET /expert_distribution.
void RegisterExperts(http::Server& server, Service& service);

// GET /metrics in the text format of Prometheus. It responds also while the server loads or drains.
void RegisterMetrics(http::Server& server, Service& service);

// Throws Error kUnavailable while the server loads or drains, and after the ranks are lost.
void RequireServing(const Service& service);
// Like RequireServing, but throws Error kUnavailable also if a rank has no recent heartbeat.
void RequireReady(const Service& service);
// Whether memory of the ranks is released (/release_memory_occupation). Then nothing runs, the
// cache is empty, and a query to the ranks would wait until the memory is resumed.
bool MemoryReleased(const Service& service);
// Throws Error kUnavailable while memory of the ranks is released.
void RequireMemory(const Service& service);

}  // namespace switchyard::native
