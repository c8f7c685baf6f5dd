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
// Reasoning is not constrained: the grammar has it before the constrained part, if the model has a
// format of reasoning, and the prompt does not exclude it. Forced calls have the format that
// ForcedCalls returns. With a constraint of the content, the model may still call offered tools, if
// its calls begin with a marker. If tools are strict and the model's arguments are JSON, any text
// is allowed, but calls in it have the model's format, and arguments of strict tools match their
// parameters.
void ConstrainChat(const Service& service, const Fields& f, const PromptEnd& prompt,
                   GenerationSpec* spec);

// The format of calls that tool_choice requires. It is the model's own format if its arguments are
// JSON, otherwise the JSON objects of Llama 3.
const CallFormat* ForcedCalls(const OutputFormat& model);

}  // namespace switchyard
