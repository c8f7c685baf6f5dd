// Messages of a chat request, made ready for a template.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "text/chat/template_traits.h"

namespace switchyard {

// Throws Error kInvalid that names the message for anything malformed, and the type of a part that
// is no text. The arguments of tool calls may be any text.
void CheckMessages(const nlohmann::ordered_json& messages);

// The messages as they came, but for what `traits` says that the template does not read:
// - null or missing content becomes "";
// - text parts become one string, joined by spaces (as SGLang joins them), or a string one part;
// - arguments become an object if they are the text of one, or the text of an object.
// Numbers keep their digits. Arguments that are no JSON stay the text they are, or where the
// template fails on texts, become {"arguments": text}.
nlohmann::ordered_json AdaptMessages(nlohmann::ordered_json messages, const TemplateTraits& traits);

// Adds the other names of a message's reasoning (reasoning_content, thinking, reasoning) that
// `template_source` mentions, as transformers 5 does.
void AliasReasoning(std::string_view template_source, nlohmann::ordered_json* messages);

// Makes the roles trusted, so that markers that a template builds from them may be special tokens:
// roles that every template knows, and those that `template_source` has as a string of its own.
// What else a request writes there stays plain text.
void TrustRoles(std::string_view template_source, nlohmann::ordered_json* messages);

}  // namespace switchyard
