// What shapes of messages a chat template reads, found out by rendering it once it is loaded.
#pragma once

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "text/jinja/template.h"

namespace switchyard {

// Roles by how templates treat them.
enum class RoleClass : size_t { kSystem, kUser, kAssistant, kTool };
inline constexpr size_t kRoleClasses = 4;

// system and developer; assistant and model; tool, function and the like; all others are users.
RoleClass ClassOfRole(std::string_view role);

// Messages reach a template as a client sent them wherever it reads that shape. Each member says
// that it does not, and what it reads instead. A shape that no probe shows counts as read.
struct TemplateTraits {
  // tool_calls[].function.arguments: texts (JSON, as OpenAI's API has them) or objects.
  bool wants_object_arguments = false;
  bool wants_text_arguments = false;
  // The template fails on arguments that are no object, and not only shows them in another way.
  bool fails_on_text_arguments = false;

  struct Content {
    bool wants_text = false;   // a list of parts fails, is not shown, or is shown as a Python list
    bool wants_parts = false;  // a plain string fails or is not shown
    bool null_is_empty = false;     // null fails or is shown as "None"
    bool missing_is_empty = false;  // a message without the key fails
  };
  std::array<Content, kRoleClasses> content;  // by RoleClass
  Content content_with_calls;                 // of assistants' messages that have tool_calls

  const Content& ContentOf(const nlohmann::ordered_json& message) const;
};

// Renders short conversations with `chat` and looks at what they show, an idea of llama.cpp's
// ("caps" of its minja). `special_tokens`: the trusted variables. Never throws Error.
TemplateTraits ProbeTemplate(const jinja::Template& chat,
                             const nlohmann::ordered_json& special_tokens);

}  // namespace switchyard
