// Re-balancing of experts, seen and asked for.
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::native {

// GET /eplb: what --enable-eplb is doing. POST /eplb/rebalance: plan and move now; 409 where one is
// under way already or no load has been counted yet.
void RegisterEplb(http::Server& server, Service& service);

}  // namespace switchyard::native
