// Detects which message shapes a chat template reads, by rendering probes when it is loaded.
#pragma once

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "text/jinja/template.h"

namespace switchyard {

// Classes of roles that templates treat in the same way.
enum class RoleClass : size_t { kSystem, kUser, kAssistant, kTool };
inline constexpr size_t kRoleClasses = 4;

// kSystem: system, developer. kAssistant: assistant, model. kTool: tool, function and their
// variants. kUser: all others.
RoleClass ClassOfRole(std::string_view role);

// The message shapes that the template does not read. A member is true only if a probe showed this.
// Messages in all other shapes are passed unchanged.
struct TemplateTraits {
  // tool_calls[].function.arguments: the template expects an object. Arguments given as a text
  // (JSON, as in OpenAI's API) are parsed before rendering.
  bool wants_object_arguments = false;
  // The template expects arguments as a text. Objects are serialized to JSON before rendering.
  bool wants_text_arguments = false;
  // Rendering fails on text arguments. (Other templates only print them differently.)
  bool fails_on_text_arguments = false;

  struct Content {
    // A list of parts fails, is not printed, or is printed as a Python list.
    bool wants_text = false;
    bool wants_parts = false;       // a plain string fails or is not printed
    bool null_is_empty = false;     // null fails or is printed as "None", so "" replaces it
    bool missing_is_empty = false;  // a message without the key "content" fails, so "" is added
  };
  std::array<Content, kRoleClasses> content;  // [RoleClass]
  Content content_with_calls;                 // for assistant messages with tool_calls

  const Content& ContentOf(const nlohmann::ordered_json& message) const;
};

// Renders short conversations with `chat` and inspects the output. The method is that of llama.cpp
// ("caps" of its minja). `special_tokens`: the trusted variables. Does not throw Error.
TemplateTraits ProbeTemplate(const jinja::Template& chat,
                             const nlohmann::ordered_json& special_tokens);

}  // namespace switchyard
