// Converts requests of Anthropic's Messages API to chat requests of OpenAI's API.
#pragma once

#include "server/api/json_body.h"

namespace switchyard::anthropic {

// Converts the request `f` to a body of /v1/chat/completions with the same meaning. Blocks of
// thinking become reasoning_content, tool_use becomes tool_calls, and tool_result a message of role
// tool. Throws RequestError that names the field of `f`.
Json ChatBodyOf(const Fields& f);

}  // namespace switchyard::anthropic
