// Fields of chat requests: messages and tools.
#pragma once

#include <memory>
#include <string>

#include "server/api/json_body.h"
#include "text/output/offered_tools.h"

namespace switchyard {

// The tools of a chat request, and which of them the model has to call.

struct ToolChoice {
  enum class Kind {
    kAuto,      // the model decides
    kNone,      // no calls; the template gets no tools
    kRequired,  // at least one call
    kNamed,     // a call of `name`
  };
  Kind kind = Kind::kAuto;
  std::string name;

  bool IsForced() const { return kind == Kind::kRequired || kind == Kind::kNamed; }
};

// Parses `tool_choice`: "auto", "none", "required", or {"type": "function", "function": {"name"}}.
// Throws RequestError for other values.
ToolChoice ParseToolChoice(const Fields& f);

// Throws RequestError for a choice that the tools of the request do not allow: kRequired without
// tools, or kNamed with a name that no tool has.
void CheckToolChoice(const Fields& f);

// Throws RequestError that names the field unless `tools` is a list of functions. A function has a
// name of 1 to 256 bytes without white space and quotes, and may have a description, parameters (an
// object) and strict.
void CheckTools(const Fields& f);

// Whether a function of the checked `tools` has `strict`: true.
bool HasStrictTools(const Fields& f);

// Returns the tools that a request offers to the model. nullptr if it has no tools, or if
// tool_choice is "none".
std::shared_ptr<const OfferedTools> ParseOfferedTools(const Fields& f);

// Fields of a chat request other than the messages: tools, roles and template variables.

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
