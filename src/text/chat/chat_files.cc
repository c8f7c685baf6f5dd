#include "text/chat/chat_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/bounded_json.h"
#include "core/error.h"
#include "core/gguf_files.h"
#include "core/regular_file.h"
#include "text/tokenizer/tokenizer_reader.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t kMaxFileBytes = 16 << 20;
constexpr size_t kMaxSpecialTokens = 4096;
constexpr size_t kMaxTemplates = 64;

std::string ReadFile(const fs::path& path) { return ReadRegularFile(path, kMaxFileBytes); }

// Returns a json instead of an ordered_json, because ordered_json looks up keys by linear search.
Json ReadJson(const fs::path& path) {
  Json json = ParseBoundedJson(ReadFile(path), path.string());
  if (!json.is_object()) throw Invalid("{} is not a JSON object", path.string());
  return json;
}

// The content of a token given as a string or an AddedToken object; nullptr for other types.
const std::string* TokenText(const Json& token) {
  if (token.is_string()) return token.get_ptr<const std::string*>();
  if (!token.is_object()) return nullptr;
  auto content = token.find("content");
  return content == token.end() ? nullptr : content->get_ptr<const std::string*>();
}

// Texts of special tokens by name.
using SpecialTokens = std::map<std::string, std::string>;

// Takes every *_token of `config`: those of all tokenizers (bos_token, eos_token …) and those that
// a model adds (image_token …). If extra_special_tokens is an object, takes its entries too.
void TakeSpecialTokens(const Json& config, SpecialTokens* tokens) {
  for (const auto& [name, value] : config.items()) {
    const std::string* text = TokenText(value);
    if (name.ends_with("_token") && text) (*tokens)[name] = *text;
  }
  auto extra = config.find("extra_special_tokens");
  if (extra == config.end() || !extra->is_object()) return;
  for (const auto& [name, value] : extra->items()) {
    if (const std::string* text = TokenText(value)) (*tokens)[name] = *text;
  }
}

using Sources = std::map<std::string, ChatTemplateSource>;

// The templates of a chat_template key, which is a string or a list of {name, template}.
Sources FromKey(const Json& value, const fs::path& path) {
  const std::string where = path.string() + ": chat_template";
  if (value.is_string()) return {{"default", {value, where}}};
  if (!value.is_array()) throw Invalid("{} is neither a string nor a list", where);
  if (value.size() > kMaxTemplates) {
    throw Invalid("{} has {} templates, at most {} are allowed", where, value.size(),
                  kMaxTemplates);
  }
  Sources sources;
  for (const Json& entry : value) {
    bool valid = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                 entry.contains("template") && entry["template"].is_string();
    if (!valid) throw Invalid("{}: want every entry to be {{name, template}}", where);
    const std::string name = entry["name"];
    sources.insert_or_assign(
        name, ChatTemplateSource{entry["template"], fmt::format("{} {}", where, name)});
  }
  return sources;
}

// The templates in a file, which is plain text or JSON with a chat_template key.
Sources FromFile(const fs::path& path) {
  if (path.extension() == ".json") {
    Json json = ReadJson(path);
    if (!json.contains("chat_template")) throw Invalid("{} has no chat_template", path.string());
    return FromKey(json["chat_template"], path);
  }
  return {{"default", {ReadFile(path), path.string()}}};
}

// The template in chat_template.jinja, and those of additional_chat_templates/ by file name.
Sources FromTemplateFiles(const fs::path& model_dir) {
  Sources sources;
  if (fs::exists(model_dir / "chat_template.jinja"))
    sources = FromFile(model_dir / "chat_template.jinja");
  std::error_code missing;
  for (const auto& entry :
       fs::directory_iterator(model_dir / "additional_chat_templates", missing)) {
    if (entry.path().extension() != ".jinja") continue;
    if (sources.size() >= kMaxTemplates) {
      throw Invalid("{} has more than {} templates",
                    (model_dir / "additional_chat_templates").string(), kMaxTemplates);
    }
    sources.insert_or_assign(entry.path().stem().string(),
                             ChatTemplateSource{ReadFile(entry.path()), entry.path().string()});
  }
  return sources;
}

Sources FromModel(const fs::path& model_dir, const Json& config) {
  const auto key = config.find("chat_template");
  const bool has_key = key != config.end() && !key->is_null();
  if (FindGguf(model_dir)) return has_key ? FromKey(*key, model_dir) : Sources();
  Sources sources = FromTemplateFiles(model_dir);
  if (!sources.empty()) return sources;
  if (fs::exists(model_dir / "chat_template.json"))
    return FromFile(model_dir / "chat_template.json");
  if (!has_key) return {};
  return FromKey(*key, model_dir / "tokenizer_config.json");
}

}  // namespace

ChatFiles ReadChatFiles(const fs::path& model_dir, const std::optional<fs::path>& override_file) {
  const auto read_if_there = [&](const char* name) {
    return fs::exists(model_dir / name) ? ReadJson(model_dir / name) : Json::object();
  };
  const auto gguf = FindGguf(model_dir);
  const Json config =
      gguf ? TokenizerConfigOfGguf(GgufFiles(*gguf)) : read_if_there("tokenizer_config.json");
  SpecialTokens tokens;
  TakeSpecialTokens(config, &tokens);
  if (!gguf && !config.contains("added_tokens_decoder"))
    TakeSpecialTokens(read_if_there("special_tokens_map.json"), &tokens);
  if (tokens.size() > kMaxSpecialTokens) {
    throw Invalid("{} has {} named special tokens, at most {} are allowed",
                  (model_dir / "tokenizer_config.json").string(), tokens.size(), kMaxSpecialTokens);
  }
  ChatFiles files{
      .templates = override_file ? FromFile(*override_file) : FromModel(model_dir, config),
      .special_tokens = nlohmann::ordered_json::object()};
  for (auto& [name, text] : tokens) files.special_tokens[name] = std::move(text);
  return files;
}

}  // namespace switchyard
