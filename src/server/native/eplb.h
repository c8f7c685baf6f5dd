// Endpoints of expert load balancing (EPLB).
#pragma once

#include "eplb/manager_options.h"
#include "server/api/json_body.h"
#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::native {

// GET /eplb: status of --enable-eplb. POST /eplb/rebalance: starts a rebalance; 409 if one is
// running or no load has been recorded yet.
void RegisterEplb(http::Server& server, Service& service);

// The status in the form of GET /eplb, without "options".
Json EplbStatusJson(const EplbStatus& status);

}  // namespace switchyard::native
