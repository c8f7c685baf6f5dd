// Messages of a chat, as values of a template.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "text/chat/template_traits.h"
#include "text/jinja/template.h"

namespace switchyard {

// Checks the messages of a chat request, and adapts them to a template.

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

// continue_final_message: ends the prompt within the last message.

// A marker that is appended to the last message's text. Its position in the rendered prompt shows
// where that text ends. The method is that of transformers (render_jinja_template). Unlike in
// transformers, the marker is chosen so that it occurs nowhere else in the rendered inputs.
class FinalMessageMark {
 public:
  // Appends the marker to the content of the last message: to the string, or to the last text part
  // of a list. `surroundings`: the other variables of the template, which must not contain the
  // marker. Throws Error kInvalid for a message without text.
  FinalMessageMark(const nlohmann::ordered_json& surroundings, std::string_view template_source,
                   nlohmann::ordered_json* messages);

  // Cuts `rendered` after the message's text, and removes all markers. Trailing white space of the
  // text is kept, unless the template strips it. Throws Error kInvalid if the rendered text does
  // not contain the marker.
  void Cut(jinja::Rendered* rendered) const;

 private:
  // In the message, a space follows the mark. If this space is missing in the output, the template
  // trims.
  std::string mark_;
};

}  // namespace switchyard
