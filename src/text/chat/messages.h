// Messages of a chat request, made ready for templates.
#pragma once

#include <nlohmann/json.hpp>

#include "text/jinja/template.h"

namespace switchyard {

// What SGLang does to messages before it renders them, so that templates see the same: content that
// is null or missing becomes "", a list of text parts becomes one string (joined by spaces), and
// tool_calls' arguments become objects if they are strings of JSON. Throws Error kInvalid that
// names the message for anything malformed, and the type of a part that is no text.
nlohmann::ordered_json NormalizeMessages(const nlohmann::ordered_json& messages);

// continue_final_message: cuts what the template put behind the text of the last of `messages`.
// Throws Error kInvalid if the rendered text does not contain it.
void OpenFinalMessage(const nlohmann::ordered_json& messages, jinja::Rendered& rendered);

}  // namespace switchyard
