// POST /parse_function_call and POST /separate_reasoning: parse a given text, without the model.
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::native {

void RegisterParsers(http::Server& server, const Service& service);

}  // namespace switchyard::native
