// POST /v1/chat/completions.
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::openai {

void HandleChat(Service& service, const http::Request& request, const http::Responder& responder);

}  // namespace switchyard::openai
