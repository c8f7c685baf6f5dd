// continue_final_message: ends the prompt within the last message.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "text/jinja/template.h"

namespace switchyard {

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
