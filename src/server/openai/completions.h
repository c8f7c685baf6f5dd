// POST /v1/completions.
#pragma once

#include <memory>

#include "server/api/json_body.h"
#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::openai {

struct CompletionJob;  // the parsed body of a request
std::shared_ptr<const CompletionJob> ParseCompletion(const Service& service, const Json& body);

void HandleCompletions(Service& service, const http::Request& request,
                       const http::Responder& responder);

}  // namespace switchyard::openai
