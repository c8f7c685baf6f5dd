// The messages of a chat request as token ids.
#pragma once

#include <cstdint>
#include <vector>

#include "server/api/json_body.h"
#include "server/front/served_model.h"

namespace switchyard {

// Renders `messages`, `tools` (unless `tool_choice` is "none"), `add_generation_prompt`,
// `continue_final_message` and TemplateVariables of the body by the model's chat template.
// RequestError for malformed ones, and with the template's own message where it refuses them.
// Text of the messages never becomes a special token. `limit`: as of Tokenizer::Encode.
std::vector<int32_t> ChatPrompt(const ServedModel& model, const Json& body,
                                size_t limit = Tokenizer::kNoLimit);

}  // namespace switchyard
