// POST /scale_elastic_ep and /is_scaling_elastic_ep: planned changes of the ranks.
#pragma once

#include "server/api/json_body.h"
#include "server/front/scale_request.h"
#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::native {

// Parses the body of /scale_elastic_ep. Throws RequestError that names the field if a field is
// malformed or unknown.
ScaleRequest ParseScale(const Json& body);

// `server` must not outlive `service`.
void RegisterElastic(http::Server& server, Service& service);

}  // namespace switchyard::native
