#include "text/chat/messages.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "text/jinja/utf8.h"

namespace switchyard {
namespace {

using Json = nlohmann::ordered_json;

std::string JoinParts(const Json& parts, size_t index) {
  std::string out;
  bool first = true;
  for (const Json& part : parts) {
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      throw Invalid("messages[{}].content has a part without a type", index);
    }
    auto type = part["type"].get<std::string>();
    if (type != "text") {
      throw Invalid("messages[{}].content has a part of type \"{}\"; this model takes only text",
                    index, type);
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      throw Invalid("messages[{}].content has a text part without text", index);
    }
    if (!first) out += ' ';
    first = false;
    out += part["text"].get_ref<const std::string&>();
  }
  return out;
}

void NormalizeContent(Json& message, size_t index) {
  auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    message["content"] = "";
  } else if (content->is_array()) {
    *content = JoinParts(*content, index);
  } else if (!content->is_string()) {
    throw Invalid("messages[{}].content is neither a string nor a list of parts", index);
  }
}

void NormalizeToolCalls(Json& message, size_t index) {
  auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return;
  if (!calls->is_array()) throw Invalid("messages[{}].tool_calls is no list", index);
  for (Json& call : *calls) {
    if (!call.is_object())
      throw Invalid("messages[{}].tool_calls has an entry that is no object", index);
    auto function = call.find("function");
    if (function == call.end() || !function->is_object()) continue;
    auto arguments = function->find("arguments");
    if (arguments == function->end() || !arguments->is_string()) continue;
    const auto& text = arguments->get_ref<const std::string&>();
    Json parsed =
        text.empty() ? Json::object() : Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_discarded())
      throw Invalid("messages[{}].tool_calls: arguments are no valid JSON", index);
    *arguments = std::move(parsed);
  }
}

}  // namespace

Json NormalizeMessages(const Json& messages) {
  if (!messages.is_array() || messages.empty())
    throw Invalid("messages is no list with at least one message");
  Json out = messages;
  for (size_t i = 0; i < out.size(); ++i) {
    Json& message = out[i];
    if (!message.is_object()) throw Invalid("messages[{}] is no object", i);
    auto role = message.find("role");
    if (role == message.end() || !role->is_string()) throw Invalid("messages[{}] has no role", i);
    NormalizeContent(message, i);
    NormalizeToolCalls(message, i);
  }
  return out;
}

void OpenFinalMessage(const Json& messages, jinja::Rendered& rendered) {
  const auto& content = messages.back()["content"].get_ref<const std::string&>();
  size_t begin = jinja::SkipSpace(content);
  size_t end = std::max(begin, jinja::TrimmedEnd(content));
  std::string_view from_begin = std::string_view(content).substr(begin);
  std::string_view stripped = from_begin.substr(0, end - begin);
  size_t at = rendered.text.rfind(stripped);
  if (at == std::string::npos) {
    throw Invalid(
        "continue_final_message: the chat template does not show the last message's content as it "
        "is");
  }
  // White space behind the content stays if the template left it.
  bool whole = rendered.text.compare(at, from_begin.size(), from_begin) == 0;
  size_t length = at + (whole ? from_begin.size() : stripped.size());
  rendered.text.resize(length);
  while (!rendered.runs.empty() && rendered.runs.back().begin >= length) rendered.runs.pop_back();
  if (!rendered.runs.empty()) rendered.runs.back().end = length;
}

}  // namespace switchyard
