#include "text/chat/template_traits.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace switchyard {
namespace {

using Json = nlohmann::ordered_json;

// Probe texts that occur in no template.
constexpr std::string_view kFirst = "Heron71";
constexpr std::string_view kSecond = "Plover38";
constexpr std::string_view kKey = "Wren24";
constexpr std::string_view kValue = "Teal90";
constexpr std::string_view kArgumentsText = R"({"Wren24":"Teal90"})";

bool Has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

size_t CountOf(std::string_view part, const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

Json TextParts(std::initializer_list<std::string_view> texts) {
  Json parts = Json::array();
  for (const std::string_view text : texts) parts.push_back({{"type", "text"}, {"text", text}});
  return parts;
}

Json Turn(const char* role, Json content) {
  return {{"role", role}, {"content", std::move(content)}};
}

// An assistant message with one tool call. Mistral's templates require call ids of nine letters.
Json CallingTurn(Json arguments) {
  Json function = {{"name", "probe"}, {"arguments", std::move(arguments)}};
  Json call = {{"id", "call00001"}, {"type", "function"}, {"function", std::move(function)}};
  return {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({std::move(call)})}};
}

Json ToolTurn(Json content) {
  return {{"role", "tool"},
          {"tool_call_id", "call00001"},
          {"name", "probe"},
          {"content", std::move(content)}};
}

Json ProbeTools() {
  Json parameters = {
      {"type", "object"},
      {"properties", {{std::string(kKey), {{"type", "string"}, {"description", "-"}}}}},
      {"required", Json::array({kKey})}};
  Json function = {{"name", "probe"}, {"description", "-"}, {"parameters", std::move(parameters)}};
  return Json::array({{{"type", "function"}, {"function", std::move(function)}}});
}

class Prober {
 public:
  Prober(const jinja::Template& chat, const Json& special_tokens)
      : chat_(chat), special_tokens_(special_tokens) {}

  TemplateTraits Run() {
    TemplateTraits traits;
    const auto of = [&](RoleClass role) { return &traits.content[static_cast<size_t>(role)]; };
    const auto user = [](Json content) { return Json::array({Turn("user", std::move(content))}); };
    ProbeContent(user, 0, of(RoleClass::kUser));
    if (of(RoleClass::kUser)->needs_parts) filler_ = TextParts({"-"});
    ProbeArguments(&traits);
    const Json arguments = traits.needs_text_arguments
                               ? Json(kArgumentsText)
                               : Json{{std::string(kKey), std::string(kValue)}};
    const auto system = [&](Json content) {
      return Json::array({Turn("system", std::move(content)), Turn("user", filler_)});
    };
    const auto assistant = [&](Json content) {
      return Json::array(
          {Turn("user", filler_), Turn("assistant", std::move(content)), Turn("user", filler_)});
    };
    const auto tool = [&](Json content) {
      return Json::array(
          {Turn("user", filler_), CallingTurn(arguments), ToolTurn(std::move(content))});
    };
    const auto calling = [&](Json content) {
      Json turn = CallingTurn(arguments);
      turn["content"] = std::move(content);
      return Json::array({Turn("user", filler_), std::move(turn), ToolTurn("-")});
    };
    ProbeContent(system, 0, of(RoleClass::kSystem));
    ProbeContent(assistant, 1, of(RoleClass::kAssistant));
    ProbeContent(tool, 2, of(RoleClass::kTool));
    ProbeContent(calling, 1, &traits.content_with_calls);
    return traits;
  }

 private:
  // The rendered text; nullopt if rendering fails.
  std::optional<std::string> Render(const Json& messages, const Json& tools = nullptr) const {
    const jinja::RenderOptions options{
        .max_steps = 200'000, .max_bytes = 16 << 20, .max_output = 1 << 20, .now = 0};
    const Json variables = {{"messages", messages},
                            {"tools", tools},
                            {"documents", nullptr},
                            {"add_generation_prompt", false}};
    try {
      return chat_.Render(variables, special_tokens_, options).text;
    } catch (const jinja::TemplateError&) {
      return std::nullopt;
    }
  }

  // Varies the conversation until its rendering contains the arguments in either shape. Some
  // templates print calls only if content is null, or only if there are tools.
  void ProbeArguments(TemplateTraits* traits) const {
    for (const Json& tools : {Json(), ProbeTools()}) {
      for (const Json& content : {Json(""), Json(), Json(-1)}) {
        for (const bool answered : {true, false}) {
          const auto show = [&](Json arguments) {
            Json turn = CallingTurn(std::move(arguments));
            turn["content"] = content;
            if (content.is_number()) turn.erase("content");
            Json messages = Json::array({Turn("user", filler_), std::move(turn)});
            if (answered) messages.push_back(ToolTurn("-"));
            return Render(messages, tools);
          };
          if (CompareArguments(show(std::string(kArgumentsText)),
                               show({{std::string(kKey), std::string(kValue)}}), traits))
            return;
        }
      }
    }
  }

  // Compares the renderings of both argument shapes; returns true if at least one shows the
  // arguments.
  static bool CompareArguments(const std::optional<std::string>& text,
                               const std::optional<std::string>& object, TemplateTraits* traits) {
    const bool text_shown = text && Has(*text, kArgumentsText);
    const bool object_shown = object && Has(*object, kKey) && Has(*object, kValue);
    if (!text_shown && !object_shown) return false;
    traits->needs_object_arguments = !text_shown;
    traits->needs_text_arguments = !object_shown;
    traits->fails_on_text_arguments = !text;
    return true;
  }

  // `with(content)` returns a conversation whose message `index` has that content.
  template <typename With>
  void ProbeContent(const With& with, size_t index, TemplateTraits::Content* content) const {
    const std::optional<std::string> text = Render(with(std::string(kFirst)));
    const std::optional<std::string> parts = Render(with(TextParts({kFirst, kSecond})));
    const bool text_shown = text && Has(*text, kFirst);
    const bool parts_shown = parts && Has(*parts, kFirst) && !Has(*parts, "{'type'");
    if (text_shown != parts_shown) {
      content->needs_text = text_shown;
      content->needs_parts = parts_shown;
    }
    const std::optional<std::string> empty =
        Render(with(content->needs_parts ? TextParts({""}) : Json("")));
    if (!empty) return;
    const std::optional<std::string> null = Render(with(Json()));
    content->null_is_empty = !null || CountOf("None", *null) > CountOf("None", *empty);
    Json without = with("");
    without[index].erase("content");
    content->missing_is_empty = !Render(without);
  }

  const jinja::Template& chat_;
  const Json& special_tokens_;
  Json filler_ = "-";  // content of user messages whose text does not matter
};

}  // namespace

RoleClass ClassOfRole(std::string_view role) {
  if (role == "system" || role == "developer") return RoleClass::kSystem;
  if (role == "assistant" || role == "model") return RoleClass::kAssistant;
  for (const std::string_view tool :
       {"tool", "function", "ipython", "observation", "tool_response", "environment"}) {
    if (role == tool) return RoleClass::kTool;
  }
  return RoleClass::kUser;
}

const TemplateTraits::Content& TemplateTraits::ContentOf(const Json& message) const {
  const RoleClass role = ClassOfRole(message["role"].get_ref<const std::string&>());
  const auto calls = message.find("tool_calls");
  if (role == RoleClass::kAssistant && calls != message.end() && !calls->empty())
    return content_with_calls;
  return content[static_cast<size_t>(role)];
}

TemplateTraits ProbeTemplate(const jinja::Template& chat, const Json& special_tokens) {
  return Prober(chat, special_tokens).Run();
}

}  // namespace switchyard
