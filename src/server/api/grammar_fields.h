// Fields of requests that constrain the output.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/source.h"
#include "server/api/chat_output.h"
#include "server/api/json_body.h"
#include "server/front/generation.h"
#include "server/front/service.h"

namespace switchyard {

// The fields of a request that constrain its output to a grammar.

// A constraint of the output: the name of its field, and its grammar.
struct OutputConstraint {
  std::string field;
  GrammarSource source;
};

// Reads response_format (OpenAI), json_schema, regex, ebnf and structural_tag (SGLang), and
// structured_outputs and the guided_ fields (vLLM). Throws RequestError that names the field if a
// constraint is malformed or cannot be honoured, or if there is more than one.
std::optional<OutputConstraint> FindConstraint(const Service& service, const Fields& f);

// Compiles the grammar on the calling thread. Throws RequestError that names the field.
std::shared_ptr<const ReadyGrammar> CompileConstraint(const Service& service,
                                                      const OutputConstraint& constraint);

// Sets `spec->grammar` to the constraint of the request, if there is one.
void ParseGrammar(const Service& service, const Fields& f, GenerationSpec* spec);

// The grammar of a chat's output: the constraint of its content, or the calls that tool_choice
// requires, after the model's reasoning.

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
