// Anthropic's Messages API: POST /v1/messages and POST /v1/messages/count_tokens.
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::anthropic {

void Register(http::Server& server, Service& service);

}  // namespace switchyard::anthropic
