#include "text/chat/chat_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "core/error.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::uintmax_t kMaxFileBytes = 16 << 20;

std::string ReadFile(const fs::path& path) {
  std::error_code error;
  std::uintmax_t size = fs::file_size(path, error);
  if (error) throw NotFound("{}: {}", path.string(), error.message());
  if (size > kMaxFileBytes)
    throw Invalid("{} has {} bytes, want at most {}", path.string(), size, kMaxFileBytes);
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw NotFound("{} cannot be read", path.string());
  return text.str();
}

Json ReadJson(const fs::path& path) {
  try {
    Json json = Json::parse(ReadFile(path));
    if (!json.is_object()) throw Invalid("{} is not a JSON object", path.string());
    return json;
  } catch (const Json::exception& error) {
    throw Invalid("{}: {}", path.string(), error.what());
  }
}

// The content of a token given as a string or an AddedToken object; nullptr for other types.
const std::string* TokenText(const Json& token) {
  if (token.is_string()) return token.get_ptr<const std::string*>();
  if (!token.is_object()) return nullptr;
  auto content = token.find("content");
  return content == token.end() ? nullptr : content->get_ptr<const std::string*>();
}

// Every *_token of `config`: the usual seven and what a model adds (image_token …).
void TakeSpecialTokens(const Json& config, Json* tokens) {
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

// A chat_template key: a string, or a list of {name, template}.
Sources FromKey(const Json& value, const fs::path& path) {
  const std::string where = path.string() + ": chat_template";
  if (value.is_string()) return {{"default", {value, where}}};
  if (!value.is_array()) throw Invalid("{} is neither a string nor a list", where);
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

// A file that holds a template as plain text, or as JSON with a chat_template key.
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
    sources.insert_or_assign(entry.path().stem().string(),
                             ChatTemplateSource{ReadFile(entry.path()), entry.path().string()});
  }
  return sources;
}

Sources FromModel(const fs::path& model_dir, const Json& config) {
  Sources sources = FromTemplateFiles(model_dir);
  if (!sources.empty()) return sources;
  if (fs::exists(model_dir / "chat_template.json"))
    return FromFile(model_dir / "chat_template.json");
  const auto key = config.find("chat_template");
  if (key == config.end() || key->is_null()) return {};
  return FromKey(*key, model_dir / "tokenizer_config.json");
}

}  // namespace

ChatFiles ReadChatFiles(const fs::path& model_dir, const std::optional<fs::path>& override_file) {
  const auto read_if_there = [&](const char* name) {
    return fs::exists(model_dir / name) ? ReadJson(model_dir / name) : Json::object();
  };
  const Json config = read_if_there("tokenizer_config.json");
  ChatFiles files{.special_tokens = Json::object()};
  TakeSpecialTokens(config, &files.special_tokens);
  if (!config.contains("added_tokens_decoder"))
    TakeSpecialTokens(read_if_there("special_tokens_map.json"), &files.special_tokens);
  files.templates = override_file ? FromFile(*override_file) : FromModel(model_dir, config);
  return files;
}

}  // namespace switchyard
