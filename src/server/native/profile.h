// SGLang's POST /start_profile and /stop_profile: traces of the operations of every rank.
#pragma once

#include "profile/options.h"
#include "server/api/json_body.h"
#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::native {

void RegisterProfile(http::Server& server, Service& service);

// The profile that the body of /start_profile requests. Each field of SGLang's ProfileReqInput is
// either honoured or refused. `gpus`: whether ranks are on GPUs. Throws RequestError, which names
// the field, for an invalid or unknown field.
profile::Options ParseProfile(const Json& body, bool gpus);

}  // namespace switchyard::native
