// The grammar of a chat's output: the constraint of its content, or the calls that tool_choice
// requires, after the model's reasoning.
#pragma once

#include <vector>

#include "server/api/chat_output.h"
#include "server/api/json_body.h"
#include "server/front/generation.h"
#include "server/front/service.h"

namespace switchyard {

// Reads the fields of FindConstraint and tool_choice, and sets `spec->grammar` if they constrain
// the output. `prompt`: the end of the prompt. Throws RequestError that names the field.
//
// Reasoning is not constrained. The grammar allows it before the constrained part if the model has
// a format of reasoning and the prompt does not exclude reasoning. Calls that tool_choice requires
// have the format that ForcedCalls returns. If the content is constrained, the model may call
// offered tools instead, provided that its calls begin with a marker. If only strict tools
// constrain the output, any text is allowed. Calls in the text must have the model's format, and
// the arguments of strict tools must match their parameters. This requires a model that writes
// arguments as JSON.
void ConstrainChat(const Service& service, const Fields& f, const PromptEnd& prompt,
                   GenerationSpec* spec);

// The format of calls that tool_choice requires. It is the model's own format if its arguments are
// JSON, otherwise the JSON objects of Llama 3.
const CallFormat* ForcedCalls(const OutputFormat& model);

}  // namespace switchyard
