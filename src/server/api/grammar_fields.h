// The fields of a request that constrain its output to a grammar.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "grammar/source.h"
#include "server/api/json_body.h"
#include "server/front/service.h"

namespace switchyard {

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

}  // namespace switchyard
