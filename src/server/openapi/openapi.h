// GET /openapi.json and GET /docs.
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::openapi {

// `server` and `service` outlive the routes. Other routes may be registered later.
void Register(http::Server& server, const Service& service);

}  // namespace switchyard::openapi
