// Converts exceptions of handlers to error responses in OpenAI's format.
#pragma once

#include <string>

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard {

// Wraps `handler`. An Error that it throws becomes an error response with the error's status,
// "param" and "code". RedactPaths removes paths of this server from the message.
http::Handler Guarded(const Service& service, http::Handler handler);

// Removes the directories of the model, the tokenizer and the chat template from `message`. For
// example, "/models/x/chat_template.jinja" becomes "chat_template.jinja".
std::string RedactPaths(const Service& service, std::string message);

}  // namespace switchyard
