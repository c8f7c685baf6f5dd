// Converts exceptions of handlers to error responses in OpenAI's format.
#pragma once

#include <string>

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard {

// Wraps `handler`. An Error that it throws becomes an error response with the error's status,
// "param" and "code", and the message without this server's directories (RedactPaths).
http::Handler Guarded(const Service& service, http::Handler handler);

// Removes the directories of the model, the tokenizer and the chat template from `message`,
// including relative directories and directories with spaces. Reduces other absolute paths to their
// last component (http::HidePaths). For example, "/models/x/chat_template.jinja" becomes
// "chat_template.jinja".
std::string RedactPaths(const Service& service, std::string message);

}  // namespace switchyard
