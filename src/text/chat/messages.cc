#include "text/chat/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/jinja/context.h"
#include "text/jinja/exact_json.h"
#include "text/jinja/print.h"
#include "text/jinja/utf8.h"

namespace switchyard {
namespace {

using Json = nlohmann::ordered_json;

constexpr jinja::JsonLimits kArgumentLimits{.depth = 128, .keys = 4096};

void CheckPart(const Json& part, size_t index) {
  if (part.is_string()) return;
  if (!part.is_object() || !part.contains("type") || !part["type"].is_string())
    throw Invalid("messages[{}].content has a part without a type", index);
  const auto type = part["type"].get<std::string>();
  if (type != "text") {
    throw Invalid("messages[{}].content has a part of type \"{}\"; only text is supported", index,
                  type);
  }
  if (!part.contains("text") || !part["text"].is_string())
    throw Invalid("messages[{}].content has a text part without text", index);
}

void CheckMessage(const Json& message, size_t index) {
  if (!message.is_object()) throw Invalid("messages[{}] is not an object", index);
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) throw Invalid("messages[{}] has no role", index);
  const auto content = message.find("content");
  if (content != message.end() && content->is_array()) {
    for (const Json& part : *content) CheckPart(part, index);
  } else if (content != message.end() && !content->is_null() && !content->is_string()) {
    throw Invalid("messages[{}].content is neither a string nor a list of parts", index);
  }
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return;
  if (!calls->is_array()) throw Invalid("messages[{}].tool_calls is not a list", index);
  for (const Json& call : *calls) {
    if (!call.is_object())
      throw Invalid("messages[{}].tool_calls: want every entry to be an object", index);
  }
}

std::string JoinParts(const Json& parts) {
  std::string out;
  for (const Json& part : parts) {
    if (&part != &parts.front()) out += ' ';
    out += (part.is_string() ? part : part["text"]).get_ref<const std::string&>();
  }
  return out;
}

void AdaptContent(const TemplateTraits::Content& traits, Json* message) {
  auto content = message->find("content");
  const bool missing = content == message->end();
  if (missing ? traits.missing_is_empty : content->is_null() && traits.null_is_empty)
    (*message)["content"] = "";
  content = message->find("content");
  if (content == message->end()) return;
  if (content->is_array() && traits.needs_text) {
    *content = JoinParts(*content);
  } else if (content->is_string() && traits.needs_parts) {
    Json part = {{"type", "text"}, {"text", std::move(*content)}};
    *content = Json::array({std::move(part)});
  }
}

// Parses the arguments of a call. An empty text gives {}. nullopt if the text is not JSON, or
// exceeds kArgumentLimits.
std::optional<Json> ParseArguments(const std::string& text) {
  if (text.empty()) return Json::object();
  try {
    return jinja::ParseExactJson(text, "text", kArgumentLimits);
  } catch (const Json::exception&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Serializes arguments in the format of Python's json.dumps.
std::string ArgumentsText(const Json& arguments) {
  jinja::Context context((jinja::RenderOptions()));
  try {
    return ToJson(context, FromJson(context, arguments, false), jinja::JsonStyle()).str();
  } catch (const jinja::Raise& raise) {
    throw Invalid("messages: invalid arguments of a tool call: {}", raise.message);
  }
}

void AdaptArguments(const TemplateTraits& traits, Json* arguments) {
  if (arguments->is_string() && traits.needs_object_arguments) {
    std::optional<Json> parsed = ParseArguments(arguments->get_ref<const std::string&>());
    const bool usable = parsed && (parsed->is_object() || !traits.fails_on_text_arguments);
    if (usable) {
      *arguments = std::move(*parsed);
    } else if (traits.fails_on_text_arguments) {
      Json text = std::move(*arguments);
      *arguments = Json::object({{"arguments", std::move(text)}});
    }
  } else if (traits.needs_text_arguments && (arguments->is_object() || arguments->is_array())) {
    *arguments = ArgumentsText(*arguments);
  }
}

// Adapts the arguments of one call: an entry of tool_calls, or the older function_call.
void AdaptCall(const TemplateTraits& traits, Json* call) {
  if (!call->is_object()) return;
  const auto function = call->find("function");
  Json& holder = function != call->end() && function->is_object() ? *function : *call;
  const auto arguments = holder.find("arguments");
  if (arguments != holder.end()) AdaptArguments(traits, &*arguments);
}

// The roles of OpenAI's API and of published templates.
constexpr std::array<std::string_view, 9> kRoles = {"system",    "developer",   "user",
                                                    "assistant", "tool",        "function",
                                                    "ipython",   "observation", "model"};

bool IsPlainWord(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

// Returns the string literals of a template that are plain words. Reads the whole source, so it is
// called once for all messages.
std::unordered_set<std::string_view> QuotedWords(std::string_view source) {
  std::unordered_set<std::string_view> words;
  for (const char quote : {'\'', '"'}) {
    size_t begin = source.find(quote);
    while (begin != std::string_view::npos) {
      const size_t end = source.find(quote, begin + 1);
      if (end == std::string_view::npos) break;
      const std::string_view word = source.substr(begin + 1, end - begin - 1);
      if (IsPlainWord(word)) words.insert(word);
      begin = end;
    }
  }
  return words;
}

}  // namespace

void CheckMessages(const Json& messages) {
  if (!messages.is_array() || messages.empty())
    throw Invalid("messages: want a list of at least one message");
  for (size_t i = 0; i < messages.size(); ++i) CheckMessage(messages[i], i);
}

Json AdaptMessages(Json messages, const TemplateTraits& traits) {
  for (Json& message : messages) {
    AdaptContent(traits.ContentOf(message), &message);
    const auto calls = message.find("tool_calls");
    if (calls != message.end() && calls->is_array()) {
      for (Json& call : *calls) AdaptCall(traits, &call);
    }
    const auto call = message.find("function_call");
    if (call != message.end()) AdaptCall(traits, &*call);
  }
  return messages;
}

std::string TextOfContent(const Json& message) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return "";
  return content->is_array() ? JoinParts(*content) : content->get<std::string>();
}

void AliasReasoning(std::string_view template_source, Json* messages) {
  static constexpr std::array<const char*, 3> kNames = {"reasoning_content", "thinking",
                                                        "reasoning"};
  std::array<bool, 2> mentioned{};
  for (size_t i = 0; i < mentioned.size(); ++i)
    mentioned[i] = template_source.find(kNames[i]) != std::string_view::npos;
  for (Json& message : *messages) {
    const auto given = std::find_if(kNames.begin(), kNames.end(), [&](const char* name) {
      const auto value = message.find(name);
      return value != message.end() && !value->is_null();
    });
    if (given == kNames.end()) continue;
    const Json reasoning = message[*given];
    for (size_t i = 0; i < mentioned.size(); ++i) {
      const auto old = message.find(kNames[i]);
      if (mentioned[i] && (old == message.end() || old->is_null())) message[kNames[i]] = reasoning;
    }
  }
}

void TrustRoles(std::string_view template_source, Json* messages) {
  std::optional<std::unordered_set<std::string_view>> quoted;
  for (Json& message : *messages) {
    Json& role = message["role"];
    const auto& name = role.get_ref<const std::string&>();
    bool known = std::find(kRoles.begin(), kRoles.end(), name) != kRoles.end();
    if (!known) {
      if (!quoted) quoted = QuotedWords(template_source);
      known = quoted->contains(name);
    }
    if (known) role = jinja::TrustedString(name);
  }
}

namespace {

using Json = nlohmann::ordered_json;

std::string* TextOfContent(Json* content) {
  if (content->is_string()) return content->get_ptr<std::string*>();
  if (!content->is_array()) return nullptr;
  for (auto part = content->rbegin(); part != content->rend(); ++part) {
    if (part->is_string()) return part->get_ptr<std::string*>();
    if (part->is_object() && part->contains("text") && (*part)["text"].is_string())
      return (*part)["text"].get_ptr<std::string*>();
  }
  return nullptr;
}

// Removes bytes [begin, end) from the text and its runs.
void Erase(size_t begin, size_t end, jinja::Rendered* rendered) {
  rendered->text.erase(begin, end - begin);
  const auto shift = [&](size_t at) {
    return at >= end ? at - (end - begin) : std::min(at, begin);
  };
  std::vector<jinja::Run> runs;
  for (const jinja::Run& run : rendered->runs) {
    const jinja::Run kept{shift(run.begin), shift(run.end), run.trusted};
    if (kept.begin == kept.end) continue;
    if (!runs.empty() && runs.back().trusted == kept.trusted) {
      runs.back().end = kept.end;
    } else {
      runs.push_back(kept);
    }
  }
  rendered->runs = std::move(runs);
}

}  // namespace

FinalMessageMark::FinalMessageMark(const Json& surroundings, std::string_view template_source,
                                   Json* messages) {
  const auto content = messages->back().find("content");
  std::string* text = content == messages->back().end() ? nullptr : TextOfContent(&*content);
  if (text == nullptr)
    throw Invalid("continue_final_message: the last message has no text to continue");
  const std::string all = messages->dump(-1, ' ', false, Json::error_handler_t::replace) +
                          surroundings.dump(-1, ' ', false, Json::error_handler_t::replace);
  // The marker consists of digits, because filters for case or escaping do not change digits.
  for (int i = 0; mark_.empty() || all.find(mark_) != std::string::npos ||
                  template_source.find(mark_) != std::string_view::npos;
       ++i) {
    mark_ = fmt::format("7391508264{}", i);
  }
  *text += mark_ + ' ';
}

void FinalMessageMark::Cut(jinja::Rendered* rendered) const {
  const size_t at = rendered->text.rfind(mark_);
  if (at == std::string::npos) {
    throw Invalid(
        "continue_final_message: the chat template does not print the last message's content "
        "unchanged");
  }
  const bool trims = rendered->text.compare(at + mark_.size(), 1, " ") != 0;
  const size_t end = trims ? jinja::TrimmedEnd(std::string_view(rendered->text).substr(0, at)) : at;
  Erase(end, rendered->text.size(), rendered);
  for (size_t other = rendered->text.find(mark_); other != std::string::npos;
       other = rendered->text.find(mark_)) {
    const size_t after = other + mark_.size();
    Erase(other, after + (rendered->text.compare(after, 1, " ") == 0 ? 1 : 0), rendered);
  }
}

}  // namespace switchyard
