// The chat template of a checkpoint: renders OpenAI-style messages to prompt text, and marks the
// trusted parts of the text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "text/chat/template_traits.h"
#include "text/jinja/template.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// One conversation to render. All fields come from a request and are untrusted.
struct ChatInput {
  nlohmann::ordered_json messages;  // array of {role, content, …} as OpenAI's chat API has it
  nlohmann::ordered_json tools = nullptr;  // array of tools, or null
  bool add_generation_prompt = true;       // the prompt ends with the header of an assistant turn
  bool continue_final_message =
      false;  // the last message stays unfinished; excludes add_generation_prompt
  nlohmann::ordered_json kwargs =
      nullptr;  // chat_template_kwargs: an object of additional variables, or null
};

// Owned by the server front; immutable after construction, thread-safe.
class ChatTemplate {
 public:
  // Reads the templates and special tokens of a checkpoint (ReadChatFiles). Templates come from the
  // first of these that exists: chat_template.jinja with additional_chat_templates/NAME.jinja;
  // chat_template.json; the chat_template of tokenizer_config.json. The last is a string, or a list
  // of {name, template} with "default" and "tool_use". `override_file` (--chat-template) replaces
  // all of these. Each template is probed for the shapes of messages that it reads
  // (TemplateTraits). A directory without any template is not an error here. Throws Error that
  // names the file, and the line of a syntax error in a template.
  static ChatTemplate FromDirectory(const std::filesystem::path& model_dir,
                                    const std::optional<std::filesystem::path>& override_file = {});

  // If false, Apply throws an Error that says how to provide a template.
  bool Present() const { return !templates_.empty(); }

  // The source of the template for conversations with or without tools; empty if there is none.
  std::string Source(bool with_tools) const;

  // Renders the prompt. The template receives the messages unchanged, except for shapes that it
  // does not read (AdaptMessages). Throws Error kInvalid for malformed messages (named by index and
  // key), and jinja::TemplateError with the template's own message.
  jinja::Rendered Apply(const ChatInput& input, const jinja::RenderOptions& options = {}) const;

 private:
  struct Named {
    jinja::Template parsed;
    std::string source;
    TemplateTraits traits;
  };

  ChatTemplate() = default;

  // The template "tool_use" if there are tools and the checkpoint has this template; otherwise
  // "default", or the only template. Throws Error.
  const Named& Choose(bool with_tools) const;

  std::string model_dir_;
  // By name. The template "default" is used unless another one is selected.
  std::map<std::string, Named> templates_;
  nlohmann::ordered_json special_tokens_ = nlohmann::ordered_json::object();  // bos_token … by name
};

// Encodes a rendered prompt to token ids.

// Special tokens are recognised in trusted runs only. Templates write BOS and EOS themselves, so
// the post-processor adds no special tokens unless `add_special_tokens` is set. `limit`: see
// Tokenizer::Encode.
std::vector<int32_t> EncodeRendered(const Tokenizer& tokenizer, const jinja::Rendered& rendered,
                                    bool add_special_tokens = false,
                                    size_t limit = Tokenizer::kNoLimit);

}  // namespace switchyard
