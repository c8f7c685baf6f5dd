// The endpoints of the APIs.
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard {

// Adds the endpoints that a server and the engine within a process have: those of OpenAI,
// Anthropic, SGLang and of pooling models. `service` outlives the server.
void RegisterEndpoints(http::Server& server, Service& service);

}  // namespace switchyard
