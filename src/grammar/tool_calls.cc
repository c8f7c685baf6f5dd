#include "grammar/tool_calls.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "grammar/schema_rewriter.h"

namespace switchyard {
namespace {

bool HasKeyword(const SchemaJson& schema) {
  return std::ranges::any_of(schema.items(),
                             [](const auto& member) { return !IsAnnotation(member.key()); });
}

SchemaJson ArgumentsOf(const SchemaJson& function, const std::string& name, JsonSpace space) {
  SchemaJson parameters = SchemaJson::object();
  if (function.contains("parameters") && function["parameters"].is_object())
    parameters = function["parameters"];
  if (!HasKeyword(parameters)) parameters["type"] = "object";
  SchemaJson format = {{"type", "json_schema"}};
  try {
    format["json_schema"] = SchemaRewriter(parameters).Run();
  } catch (const Error& e) {
    throw Invalid("parameters of tool {}: {}", name, e.what());
  }
  if (space != JsonSpace::kAny) format["max_whitespace_cnt"] = 1;
  return format;
}

void Append(const SchemaJson& more, SchemaJson* elements) {
  elements->insert(elements->end(), more.begin(), more.end());
}

// A marker of a tag: text, or a token.
SchemaJson TagMarker(const SchemaJson& element) {
  return element["type"] == "token" ? element : element["value"];
}

// The format of one call, as a tag, because tags_with_separator takes only tags. The first part of
// the call becomes the tag's `begin`.
SchemaJson Call(const SchemaJson& function, const ToolCallFormat& format, JsonSpace space) {
  const auto name = function["name"].get<std::string>();
  std::string head = format.head + (format.quoted ? SchemaJson(name).dump() : name);
  if (format.indexed) head += ':';
  SchemaJson elements = MarkedText(head, format.special);
  const SchemaJson begin = elements.front();
  elements.erase(elements.begin());
  if (format.indexed) elements.push_back({{"type", "regex"}, {"pattern", "[0-9]{1,3}"}});
  Append(MarkedText(format.between, format.special), &elements);
  elements.push_back(ArgumentsOf(function, name, space));
  Append(MarkedText(format.tail, format.special), &elements);
  return {{"type", "tag"},
          {"begin", TagMarker(begin)},
          {"content", SequenceOf(std::move(elements))},
          {"end", ""}};
}

}  // namespace

GrammarSource ToolCallGrammar(const nlohmann::ordered_json& tools,
                              const std::optional<std::string>& name, bool parallel,
                              const ToolCallFormat& format, JsonSpace space) {
  if (!tools.is_array()) throw Invalid("tools is not a list");
  SchemaJson tags = SchemaJson::array();
  for (const SchemaJson& tool : tools) {
    const SchemaJson function =
        tool.is_object() && tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string())
      throw Invalid("tools has an entry without the name of a function");
    if (!name || function["name"] == *name) tags.push_back(Call(function, format, space));
  }
  if (tags.empty()) throw Invalid("tools has no function {}", name.value_or(""));
  SchemaJson elements = MarkedText(format.open, format.special);
  elements.push_back({{"type", "tags_with_separator"},
                      {"tags", std::move(tags)},
                      {"separator", format.separator},
                      {"at_least_one", true},
                      {"stop_after_first", !parallel}});
  Append(MarkedText(format.close, format.special), &elements);
  const SchemaJson whole = {{"type", "structural_tag"},
                            {"format", SequenceOf(std::move(elements))}};
  return {GrammarSource::Kind::kStructuralTag, whole.dump()};
}

}  // namespace switchyard
