// What a chat request asks beside its messages.
#pragma once

#include "server/api/json_body.h"

namespace switchyard {

// RequestError for a tool_choice that this server cannot keep: it neither forces nor parses calls,
// so only "auto" and "none" are; and for parallel_tool_calls: false with tools.
void CheckChatFields(const Fields& f);

// RequestError for a message whose role is no role of OpenAI's interface or of a published
// template. For OpenAI's interface: /tokenize leaves roles to the template, as transformers does.
void CheckChatRoles(const Fields& f);

// The variables for the chat template: chat_template_kwargs, and beside them reasoning_effort,
// SGLang's reasoning {effort, enabled} and documents, which kwargs of the same names override. An
// effort also sets thinking and enable_thinking, as SGLang and vLLM do. Null where there are none.
Json TemplateVariables(const Fields& f);

}  // namespace switchyard
