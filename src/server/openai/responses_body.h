// Converts requests of OpenAI's Responses API to chat requests.
#pragma once

#include "server/api/json_body.h"

namespace switchyard::openai {

// The chat messages of `input`, without instructions. Items of reasoning and function calls become
// part of the adjacent assistant message. Outputs of functions become messages of role tool. Throws
// RequestError that names the field.
Json InputMessages(const Fields& f);

// Converts the request `f` to a body of /v1/chat/completions with the same meaning. `messages`: the
// messages of earlier responses, followed by those of `input`. Throws RequestError that names the
// field of `f`.
Json ResponsesChatBody(const Fields& f, const Json& messages);

}  // namespace switchyard::openai
