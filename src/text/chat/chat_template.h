// The chat template of a checkpoint: OpenAI-style messages in, prompt text with provenance out.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "text/chat/template_traits.h"
#include "text/jinja/template.h"

namespace switchyard {

// One conversation to render. Everything here comes from a request and is untrusted.
struct ChatInput {
  nlohmann::ordered_json messages;  // array of {role, content, …} as OpenAI's chat API has it
  nlohmann::ordered_json tools = nullptr;  // array of tools, or null
  bool add_generation_prompt = true;       // end with the opening of an assistant's turn
  bool continue_final_message =
      false;  // leave the last message open; excludes add_generation_prompt
  nlohmann::ordered_json kwargs =
      nullptr;  // chat_template_kwargs: an object of further variables, or null
};

// Belongs to the front; immutable after construction, any thread may call it.
class ChatTemplate {
 public:
  // Reads chat_template.jinja with additional_chat_templates/NAME.jinja, else chat_template.json,
  // else tokenizer_config.json's chat_template (a string, or a list of {name, template} with
  // "default" and "tool_use"); `override_file` (--chat-template) wins over all. Special token
  // strings come from tokenizer_config.json and special_tokens_map.json. Each template is probed
  // for the shapes of messages that it reads (TemplateTraits). A directory without any template is
  // no error here. Throws Error that names the file, and the line where a template does not parse.
  static ChatTemplate FromDirectory(const std::filesystem::path& model_dir,
                                    const std::optional<std::filesystem::path>& override_file = {});

  // False: Apply throws an Error that says how to give a template.
  bool Present() const { return !templates_.empty(); }

  // Messages reach the template as they came, but where it shows that it reads another shape
  // (AdaptMessages). Throws Error kInvalid for malformed messages (named by index and key), and
  // jinja::TemplateError with the template's own message.
  jinja::Rendered Apply(const ChatInput& input, const jinja::RenderOptions& options = {}) const;

 private:
  struct Named {
    jinja::Template parsed;
    std::string source;
    TemplateTraits traits;
  };

  ChatTemplate() = default;

  // "tool_use" with tools, if there is one; else "default", or the only one. Throws Error.
  const Named& Choose(bool with_tools) const;

  std::string model_dir_;
  std::map<std::string, Named> templates_;  // by name; "default" is the usual one
  nlohmann::ordered_json special_tokens_ = nlohmann::ordered_json::object();  // bos_token … by name
};

}  // namespace switchyard
