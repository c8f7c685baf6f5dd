// Registers OpenAI's endpoints: /v1/chat/completions, /v1/completions, /v1/models.
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::openai {

void Register(http::Server& server, Service& service);

}  // namespace switchyard::openai
