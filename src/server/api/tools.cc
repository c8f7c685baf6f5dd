#include "server/api/tools.h"

#include <algorithm>

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

}  // namespace switchyard
