#include "server/api/chat_fields.h"

#include <algorithm>
#include <string_view>

#include "text/chat/messages.h"

namespace switchyard {
namespace {

constexpr size_t kMaxName = 256;  // bytes

[[noreturn]] void WrongChoice(const Json& value) {
  throw InvalidField("tool_choice",
                     "tool_choice is {}, want auto, none, required or the name of a function",
                     Dump(value).substr(0, 80));
}

void CheckName(const Fields& function) {
  const std::string name = function.String("name", "");
  const auto is_bad = [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == '"' || c == '\x7F';
  };
  if (!name.empty() && name.size() <= kMaxName && std::ranges::none_of(name, is_bad)) return;
  throw InvalidField(function.Name("name"),
                     "{}: want 1 to {} bytes without white space, control characters and quotes",
                     function.Name("name"), kMaxName);
}

void CheckTool(const Json& tool, const std::string& where) {
  if (!tool.is_object()) throw InvalidField(where, "{} is not an object", where);
  const Fields t(tool, where + ".");
  if (const std::string type = t.String("type", "function"); type != "function")
    throw InvalidField(t.Name("type"), "{} is {}, only function is supported", t.Name("type"),
                       Dump(type).substr(0, 80));
  const Json* function = t.Find("function");
  if (!function || !function->is_object())
    throw InvalidField(t.Name("function"), "{}: want an object with a name", t.Name("function"));
  const Fields f(*function, t.Name("function."));
  CheckName(f);
  f.String("description", "");
  f.Bool("strict", false);
  const Json* parameters = f.Find("parameters");
  if (parameters && !parameters->is_object())
    throw InvalidField(f.Name("parameters"), "{}: want an object with a JSON schema",
                       f.Name("parameters"));
}

}  // namespace

ToolChoice ParseToolChoice(const Fields& f) {
  const Json* choice = f.Find("tool_choice");
  if (!choice || *choice == "auto") return {};
  if (*choice == "none") return {.kind = ToolChoice::Kind::kNone, .name = {}};
  if (*choice == "required") return {.kind = ToolChoice::Kind::kRequired, .name = {}};
  if (choice->is_object() && choice->value("type", Json("function")) == "function") {
    const auto function = choice->find("function");
    if (function != choice->end() && function->is_object()) {
      const auto name = function->find("name");
      if (name != function->end() && name->is_string())
        return {.kind = ToolChoice::Kind::kNamed, .name = name->get<std::string>()};
    }
  }
  WrongChoice(*choice);
}

void CheckToolChoice(const Fields& f) {
  const ToolChoice choice = ParseToolChoice(f);
  if (!choice.IsForced()) return;
  const Json* tools = f.Find("tools");
  if (!tools || !tools->is_array() || tools->empty())
    throw InvalidField("tool_choice", "tool_choice {} needs tools",
                       Dump(*f.Find("tool_choice")).substr(0, 80));
  const auto is_named = [&](const Json& tool) {
    const auto function = tool.is_object() ? tool.find("function") : tool.end();
    return function != tool.end() && function->is_object() &&
           function->value("name", Json()) == choice.name;
  };
  if (choice.kind == ToolChoice::Kind::kNamed && std::ranges::none_of(*tools, is_named))
    throw InvalidField("tool_choice", "tool_choice: tools has no function {}",
                       Dump(choice.name).substr(0, 80));
}

void CheckTools(const Fields& f) {
  const Json* tools = f.Find("tools");
  if (!tools) return;
  if (!tools->is_array()) throw InvalidField(f.Name("tools"), "{} is not a list", f.Name("tools"));
  for (size_t i = 0; i < tools->size(); ++i)
    CheckTool((*tools)[i], fmt::format("{}[{}]", f.Name("tools"), i));
}

bool HasStrictTools(const Fields& f) {
  const Json* tools = f.Find("tools");
  return tools && std::ranges::any_of(*tools, [](const Json& tool) {
           return Fields(tool["function"]).Bool("strict", false);
         });
}

std::shared_ptr<const OfferedTools> ParseOfferedTools(const Fields& f) {
  const Json* tools = f.Find("tools");
  if (!tools || tools->empty() || ParseToolChoice(f).kind == ToolChoice::Kind::kNone)
    return nullptr;
  return std::make_shared<const OfferedTools>(*tools);
}

namespace {

// OpenAI's roles, and roles of published templates: ipython (Llama 3.1), observation (GLM-4).
constexpr std::string_view kRoles[] = {"system", "developer", "user",    "assistant",
                                       "tool",   "function",  "ipython", "observation"};
constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium",
                                         "high", "xhigh",   "max"};

bool IsOneOf(std::span<const std::string_view> list, const Json& value) {
  return value.is_string() &&
         std::find(list.begin(), list.end(), value.get_ref<const std::string&>()) != list.end();
}

void CheckRoles(const Json& messages) {
  if (!messages.is_array()) return;  // the chat template reports the error
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const auto role = message.is_object() ? message.find("role") : message.end();
    if (!message.is_object() || role == message.end() || !role->is_string()) continue;
    if (!IsOneOf(kRoles, *role)) {
      throw InvalidField(
          fmt::format("messages[{}].role", i),
          "messages[{}].role: unknown role: {}, want system, developer, user, assistant or tool", i,
          role->get_ref<const std::string&>().substr(0, 80));
    }
  }
}

// Accepts one of kEfforts, or a number in [0, 1) as SGLang does.
const Json& CheckEffort(const std::string& name, const Json& effort) {
  const bool number = effort.is_number() && effort.get<double>() >= 0 && effort.get<double>() < 1;
  if (!number && !IsOneOf(kEfforts, effort)) {
    throw InvalidField(name, "{} is {}, want none, minimal, low, medium, high, xhigh or max", name,
                       Dump(effort));
  }
  return effort;
}

// Returns `value` if it is an object, otherwise throws RequestError.
const Json& Object(const Fields& f, const char* key, const Json& value) {
  if (!value.is_object()) throw InvalidField(f.Name(key), "{} is not an object", f.Name(key));
  return value;
}

// Whether the model shall think, by the fields enable_thinking and thinking.
std::optional<bool> ThinkingOf(const Fields& f) {
  std::optional<bool> wanted;
  if (f.Has("enable_thinking")) wanted = f.Bool("enable_thinking", false);
  if (const Json* thinking = f.Find("thinking")) {
    const Fields t(Object(f, "thinking", *thinking), "thinking.");
    const std::string type = t.String("type", "");
    if (type != "enabled" && type != "disabled")
      throw InvalidField("thinking.type", "thinking.type is {}, want enabled or disabled",
                         Dump(type).substr(0, 80));
    if (t.Has("budget_tokens"))
      throw InvalidField("thinking.budget_tokens", "thinking.budget_tokens is not supported");
    wanted = type == "enabled";
  }
  return wanted;
}

}  // namespace

void CheckChatFields(const Fields& f) {
  CheckToolChoice(f);
  f.Bool("parallel_tool_calls", true);
}

void CheckChatRoles(const Fields& f) {
  if (const Json* messages = f.Find("messages")) CheckRoles(*messages);
}

void CheckFieldsWithoutMessages(const Fields& f) {
  for (const char* key : {"echo", "add_special_tokens", "return_prompt_text"}) {
    if (f.Bool(key, false))
      throw InvalidField(key, "{} is not available with input_ids: it needs messages", key);
  }
}

std::string EchoedText(const Json& messages) {
  const Json& last = messages.back();
  return last.at("role") == "assistant" ? TextOfContent(last) : "";
}

Json TemplateVariables(const Fields& f) {
  Json variables = Json::object();
  const Json* effort = f.Find("reasoning_effort");
  if (effort) CheckEffort("reasoning_effort", *effort);
  std::optional<bool> thinking = ThinkingOf(f);
  if (const Json* reasoning = f.Find("reasoning")) {
    const Fields r(Object(f, "reasoning", *reasoning), "reasoning.");
    if (r.Has("enabled")) thinking = r.Bool("enabled", false);
    if (const Json* own = r.Find("effort"); own && !effort)
      effort = &CheckEffort("reasoning.effort", *own);
  }
  if (effort) {
    variables["reasoning_effort"] = *effort;
    thinking = *effort != "none";
  }
  if (thinking) variables["thinking"] = variables["enable_thinking"] = *thinking;
  if (const Json* documents = f.Find("documents")) {
    if (!documents->is_array()) throw InvalidField("documents", "documents is not a list");
    if (!documents->empty()) variables["documents"] = *documents;
  }
  if (const Json* kwargs = f.Find("chat_template_kwargs"))
    variables.update(Object(f, "chat_template_kwargs", *kwargs));
  return variables.empty() ? Json(nullptr) : variables;
}

}  // namespace switchyard
