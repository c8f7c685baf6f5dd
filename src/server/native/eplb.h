// Endpoints of expert load balancing (EPLB).
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::native {

// GET /eplb: status of --enable-eplb. POST /eplb/rebalance: starts a rebalance; 409 if one is
// running or no load has been recorded yet.
void RegisterEplb(http::Server& server, Service& service);

}  // namespace switchyard::native
