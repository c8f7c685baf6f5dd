// Handlers whose errors a client of OpenAI can act on.
#pragma once

#include <string>

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard {

// A handler that answers an Error of `handler` with its status, "param" and "code", and without
// paths of this server.
http::Handler Guarded(const Service& service, http::Handler handler);

// `message` without the directories of the model, the tokenizer and the chat template, so that
// "/models/x/chat_template.jinja" is shown as "chat_template.jinja".
std::string WithoutPaths(const Service& service, std::string message);

}  // namespace switchyard
