// Checks the messages of a chat request, and adapts them to a template.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "text/chat/template_traits.h"

namespace switchyard {

// Throws Error kInvalid that names the malformed message, or the type of a part other than text.
// The arguments of tool calls may be any text.
void CheckMessages(const nlohmann::ordered_json& messages);

// Changes only the message shapes that the template does not read, by `traits`:
// - null or missing content becomes "";
// - text parts are joined to one string with spaces (as SGLang does), or a string becomes one text
//   part;
// - arguments become an object if they are the JSON text of an object, or text if they are an
//   object.
// Numbers keep their digits. Arguments that are not JSON stay text; if the template fails on text,
// they become {"arguments": text}.
nlohmann::ordered_json AdaptMessages(nlohmann::ordered_json messages, const TemplateTraits& traits);

// The text of a message's content: the string, or its text parts joined with spaces as by
// AdaptMessages. "" for null or missing content. The message must have passed CheckMessages.
std::string TextOfContent(const nlohmann::ordered_json& message);

// Copies the reasoning of each message to the keys that the template reads, as transformers 5 does.
// The source is the key reasoning_content, thinking or reasoning of the message. The destinations
// are those of the keys reasoning_content and thinking that `template_source` contains.
void AliasReasoning(std::string_view template_source, nlohmann::ordered_json* messages);

// Marks roles as trusted. Markers that a template builds from trusted roles may be special tokens.
// Well-known roles are trusted, and so are roles that are string literals in `template_source`.
// Other texts in the role field stay untrusted.
void TrustRoles(std::string_view template_source, nlohmann::ordered_json* messages);

}  // namespace switchyard
