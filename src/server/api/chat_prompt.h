// Renders and tokenizes the messages of a chat request.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/json_body.h"
#include "server/front/served_model.h"
#include "text/output/output_parser.h"

namespace switchyard {

struct RenderedPrompt {
  std::string text;  // output of the template; add_special_tokens does not change it
  std::vector<int32_t> ids;
  PromptEnd end;
};

// Applies the model's chat template to the body and tokenizes the result. The template gets
// `messages`, `tools` (unless `tool_choice` is "none"), `add_generation_prompt`,
// `continue_final_message` and the variables of TemplateVariables. `add_special_tokens` adds the
// tokenizer's BOS and EOS to those of the template. Throws RequestError for malformed fields; if
// the template raises an error, the RequestError has the template's message. Text of messages never
// becomes a special token. For `limit`, see Tokenizer::Encode.
RenderedPrompt ChatPrompt(const ServedModel& model, const Json& body,
                          size_t limit = Tokenizer::kNoLimit);

}  // namespace switchyard
