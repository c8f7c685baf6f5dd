// continue_final_message: a prompt that ends within the last message.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "text/jinja/template.h"

namespace switchyard {

// A mark at the end of the last message's text, which goes through the rendering with it. The
// method is that of transformers (render_jinja_template); here the mark is one that occurs nowhere
// else in what is rendered.
class FinalMessageMark {
 public:
  // Appends the mark to the content of the last of `messages`: a string, or the last part of a list
  // that has text. `surroundings`: what else may be rendered. Throws Error kInvalid for a message
  // without text.
  FinalMessageMark(const nlohmann::ordered_json& surroundings, std::string_view template_source,
                   nlohmann::ordered_json* messages);

  // Ends `rendered` where the message's text ends, and takes all marks out. White space at the end
  // of that text stays if the template leaves it. Throws Error kInvalid if the template does not
  // show the message's end.
  void Cut(jinja::Rendered* rendered) const;

 private:
  std::string mark_;  // followed by a space, which shows whether the template trims
};

}  // namespace switchyard
