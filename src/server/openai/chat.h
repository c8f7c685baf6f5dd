// POST /v1/chat/completions.
#pragma once

#include <memory>

#include "server/api/json_body.h"
#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::openai {

struct ChatJob;  // a parsed request body
std::shared_ptr<const ChatJob> ParseChat(const Service& service, const Json& body);

void HandleChat(Service& service, const http::Request& request, const http::Responder& responder);

}  // namespace switchyard::openai
