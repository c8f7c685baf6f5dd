#include "text/chat/chat_template.h"

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "text/chat/messages.h"

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
    if (!json.is_object()) throw Invalid("{} is no JSON object", path.string());
    return json;
  } catch (const Json::exception& error) {
    throw Invalid("{}: {}", path.string(), error.what());
  }
}

// The text of a token that is written as a string or as an AddedToken object; nullptr for others.
const std::string* TokenText(const Json& token) {
  if (token.is_string()) return token.get_ptr<const std::string*>();
  if (!token.is_object()) return nullptr;
  auto content = token.find("content");
  return content == token.end() ? nullptr : content->get_ptr<const std::string*>();
}

// Every *_token of tokenizer_config.json: the usual seven and what a model adds (image_token …).
Json SpecialTokens(const Json& config) {
  Json tokens = Json::object();
  for (const auto& [name, value] : config.items()) {
    const std::string* text = TokenText(value);
    if (name.ends_with("_token") && text) tokens[name] = *text;
  }
  auto extra = config.find("extra_special_tokens");
  if (extra == config.end() || !extra->is_object()) return tokens;
  for (const auto& [name, value] : extra->items()) {
    if (const std::string* text = TokenText(value)) tokens[name] = *text;
  }
  return tokens;
}

using Templates = std::map<std::string, jinja::Template>;

// A chat_template key: a string, or a list of {name, template}.
Templates ParseTemplates(const Json& value, const fs::path& path) {
  Templates templates;
  if (value.is_string()) {
    templates.emplace("default", jinja::Template::Parse(value, path.string() + ": chat_template"));
    return templates;
  }
  if (!value.is_array())
    throw Invalid("{}: chat_template is neither a string nor a list", path.string());
  for (const Json& entry : value) {
    bool valid = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                 entry.contains("template") && entry["template"].is_string();
    if (!valid)
      throw Invalid("{}: chat_template has an entry that is no {{name, template}}", path.string());
    std::string name = entry["name"];
    auto parsed = jinja::Template::Parse(entry["template"],
                                         fmt::format("{}: chat_template {}", path.string(), name));
    templates.insert_or_assign(name, std::move(parsed));
  }
  return templates;
}

// A file that holds a template as it is, or as JSON with a chat_template key.
Templates ParseFile(const fs::path& path) {
  if (path.extension() == ".json") {
    Json json = ReadJson(path);
    if (!json.contains("chat_template")) throw Invalid("{} has no chat_template", path.string());
    return ParseTemplates(json["chat_template"], path);
  }
  Templates templates;
  templates.emplace("default", jinja::Template::Parse(ReadFile(path), path.string()));
  return templates;
}

}  // namespace

ChatTemplate ChatTemplate::FromDirectory(const fs::path& model_dir,
                                         const std::optional<fs::path>& override_file) {
  ChatTemplate out;
  out.model_dir_ = model_dir.string();
  fs::path config_path = model_dir / "tokenizer_config.json";
  Json config = fs::exists(config_path) ? ReadJson(config_path) : Json::object();
  out.special_tokens_ = SpecialTokens(config);
  if (override_file) {
    out.templates_ = ParseFile(*override_file);
    return out;
  }
  for (const char* name : {"chat_template.jinja", "chat_template.json"}) {
    if (!fs::exists(model_dir / name)) continue;
    out.templates_ = ParseFile(model_dir / name);
    return out;
  }
  auto found = config.find("chat_template");
  if (found != config.end() && !found->is_null())
    out.templates_ = ParseTemplates(*found, config_path);
  return out;
}

const jinja::Template& ChatTemplate::Choose(bool with_tools) const {
  auto found = with_tools ? templates_.find("tool_use") : templates_.end();
  if (found == templates_.end()) found = templates_.find("default");
  if (found == templates_.end() && templates_.size() == 1) found = templates_.begin();
  if (found != templates_.end()) return found->second;
  if (!Present()) {
    throw Error(ErrorKind::kInvalid, fmt::format("{} has no chat template", model_dir_),
                "give one with --chat-template FILE, or send the prompt to /v1/completions");
  }
  throw Error(ErrorKind::kInvalid,
              fmt::format("{} has several chat templates, none of them \"default\"", model_dir_),
              "give one with --chat-template FILE");
}

jinja::Rendered ChatTemplate::Apply(const ChatInput& input,
                                    const jinja::RenderOptions& options) const {
  if (!input.tools.is_null() && !input.tools.is_array()) throw Invalid("tools is no list");
  bool with_tools = !input.tools.empty();
  const jinja::Template& chosen = Choose(with_tools);
  if (input.add_generation_prompt && input.continue_final_message) {
    throw Invalid("continue_final_message and add_generation_prompt exclude each other");
  }
  if (!input.kwargs.is_null() && !input.kwargs.is_object())
    throw Invalid("chat_template_kwargs is no object");
  Json messages = NormalizeMessages(input.messages);
  Json variables = {{"messages", messages},
                    {"tools", with_tools ? input.tools : Json()},
                    {"add_generation_prompt", input.add_generation_prompt}};
  if (input.kwargs.is_object()) {
    for (const auto& [name, value] : input.kwargs.items()) {
      if (variables.contains(name)) throw Invalid("chat_template_kwargs may not set {}", name);
      variables[name] = value;
    }
  }
  jinja::Rendered rendered = chosen.Render(variables, special_tokens_, options);
  if (input.continue_final_message) OpenFinalMessage(messages, rendered);
  return rendered;
}

}  // namespace switchyard
