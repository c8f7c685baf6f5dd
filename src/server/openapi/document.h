// The OpenAPI document of a server.
#pragma once

#include <string>

#include "server/api/json_body.h"
#include "server/front/service.h"
#include "server/http/router.h"

namespace switchyard::openapi {

// An OpenAPI 3.1 document of all routes of `router`. The bodies of requests follow the tables of
// known fields that the parsers use; defaults of sampling fields are those of the model.
// `with_keys`: the server requires an API key.
Json Document(const Service& service, const http::Router& router, bool with_keys);

}  // namespace switchyard::openapi
