// OpenAI's Responses API: POST /v1/responses, and GET, DELETE and input_items of stored responses.
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::openai {

void RegisterResponses(http::Server& server, Service& service);

}  // namespace switchyard::openai
