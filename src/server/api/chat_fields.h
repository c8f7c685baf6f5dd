// Fields of a chat request other than the messages: tools, roles and template variables.
#pragma once

#include <string>

#include "server/api/json_body.h"

namespace switchyard {

// Throws RequestError for a tool_choice that the tools of the request do not allow
// (CheckToolChoice), or a malformed parallel_tool_calls.
void CheckChatFields(const Fields& f);

// Throws RequestError for a message role that neither OpenAI's API nor a published template
// defines. Only OpenAI's endpoints call this. /tokenize leaves the check to the template, as
// transformers does.
void CheckChatRoles(const Fields& f);

// For a prompt without messages (input_ids). Throws RequestError if a field that applies only to
// messages is set: echo, add_special_tokens or return_prompt_text.
void CheckFieldsWithoutMessages(const Fields& f);

// The text that `echo` puts before the output. As in vLLM, this is the text of the last message if
// its role is assistant, else "". `messages` must have passed ChatPrompt.
std::string EchoedText(const Json& messages);

// Returns the variables for the chat template, or null if there are none. They come from
// enable_thinking, thinking {type}, SGLang's reasoning {enabled, effort}, reasoning_effort,
// documents and chat_template_kwargs; later fields of this list override earlier ones. Each field
// that switches reasoning sets both variables, thinking and enable_thinking, as in SGLang and vLLM.
Json TemplateVariables(const Fields& f);

}  // namespace switchyard
