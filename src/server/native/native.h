// Registers SGLang's native endpoints: /generate, /tokenize, /detokenize, /health, /get_model_info,
// /flush_cache, /start_profile and others.
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::native {

void Register(http::Server& server, Service& service);

}  // namespace switchyard::native
