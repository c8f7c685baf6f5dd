// Reads the chat templates and special tokens of a checkpoint's files.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace switchyard {

struct ChatTemplateSource {
  std::string text;
  std::string name;  // for error messages: the file, and the key within it
};

struct ChatFiles {
  // By name. The template "default" is used unless another one is selected.
  std::map<std::string, ChatTemplateSource> templates;
  nlohmann::ordered_json special_tokens;  // texts by name: bos_token …
};

// Templates come from `override_file`, or else from the first of these that exists:
// chat_template.jinja and additional_chat_templates/NAME.jinja; chat_template.json; the
// chat_template of tokenizer_config.json. Special tokens come from tokenizer_config.json. If it has
// no added_tokens_decoder, they also come from special_tokens_map.json, as in transformers. Throws
// Error that names the invalid file. A file that is missing in `model_dir` is not an error.
ChatFiles ReadChatFiles(const std::filesystem::path& model_dir,
                        const std::optional<std::filesystem::path>& override_file);

}  // namespace switchyard
