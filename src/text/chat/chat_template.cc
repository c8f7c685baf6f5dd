#include "text/chat/chat_template.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "core/error.h"
#include "text/chat/chat_files.h"
#include "text/chat/messages.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

void CheckInput(const ChatInput& input) {
  if (!input.tools.is_null() && !input.tools.is_array()) throw Invalid("tools is not a list");
  if (input.add_generation_prompt && input.continue_final_message) {
    throw Invalid("continue_final_message and add_generation_prompt are mutually exclusive");
  }
  if (!input.kwargs.is_null() && !input.kwargs.is_object())
    throw Invalid("chat_template_kwargs is not an object");
  CheckMessages(input.messages);
}

bool HasContent(const Json& message) {
  const auto content = message.find("content");
  return content != message.end() && !content->is_null() &&
         !(content->is_array() && content->empty());
}

// The template's variables other than messages.
Json VariablesOf(const ChatInput& input) {
  Json variables = {{"messages", nullptr},
                    {"tools", input.tools.empty() ? Json() : input.tools},
                    {"add_generation_prompt", input.add_generation_prompt}};
  if (input.kwargs.is_object()) {
    for (const auto& [name, value] : input.kwargs.items()) {
      if (variables.contains(name)) throw Invalid("chat_template_kwargs may not set {}", name);
      variables[name] = value;
    }
  }
  if (!variables.contains("documents")) variables["documents"] = nullptr;
  return variables;
}

}  // namespace

ChatTemplate ChatTemplate::FromDirectory(const fs::path& model_dir,
                                         const std::optional<fs::path>& override_file) {
  ChatFiles files = ReadChatFiles(model_dir, override_file);
  ChatTemplate out;
  out.model_dir_ = model_dir.string();
  out.special_tokens_ = std::move(files.special_tokens);
  for (auto& [name, source] : files.templates) {
    jinja::Template parsed = jinja::Template::Parse(source.text, source.name);
    TemplateTraits traits = ProbeTemplate(parsed, out.special_tokens_);
    out.templates_.emplace(name, Named{std::move(parsed), std::move(source.text), traits});
  }
  return out;
}

const ChatTemplate::Named& ChatTemplate::Choose(bool with_tools) const {
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

std::string ChatTemplate::Source(bool with_tools) const {
  try {
    return Choose(with_tools).source;
  } catch (const Error&) {
    return {};
  }
}

jinja::Rendered ChatTemplate::Apply(const ChatInput& input,
                                    const jinja::RenderOptions& options) const {
  const Named& chosen = Choose(!input.tools.empty());
  CheckInput(input);
  Json variables = VariablesOf(input);
  Json messages = AdaptMessages(input.messages, chosen.traits);
  AliasReasoning(chosen.source, &messages);
  std::optional<FinalMessageMark> mark;
  if (input.continue_final_message) {
    if (!HasContent(input.messages.back()))
      throw Invalid("continue_final_message: the last message has no text to continue");
    mark.emplace(variables, chosen.source, &messages);
  }
  TrustRoles(chosen.source, &messages);
  variables["messages"] = std::move(messages);
  jinja::Rendered rendered = chosen.parsed.Render(variables, special_tokens_, options);
  if (mark) mark->Cut(&rendered);
  return rendered;
}

std::vector<int32_t> EncodeRendered(const Tokenizer& tokenizer, const jinja::Rendered& rendered,
                                    bool add_special_tokens, size_t limit) {
  std::vector<Tokenizer::Piece> pieces;
  pieces.reserve(rendered.runs.size());
  for (const jinja::Run& run : rendered.runs) {
    pieces.push_back(
        {std::string_view(rendered.text).substr(run.begin, run.end - run.begin), run.trusted});
  }
  return tokenizer.EncodePieces(pieces, add_special_tokens, limit);
}

}  // namespace switchyard
