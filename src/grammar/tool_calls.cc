#include "grammar/tool_calls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "grammar/schema_rewriter.h"

namespace switchyard {
namespace {

using Format = nlohmann::ordered_json;

std::optional<int32_t> TokenOf(std::string_view text, const SpecialTokens& special) {
  const auto found = std::ranges::find(special, text, &SpecialTokens::value_type::first);
  return found == special.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

Format MarkedText(std::string_view text, const SpecialTokens& special) {
  Format elements = Format::array();
  const auto add_text = [&](std::string_view part) {
    if (!part.empty()) elements.push_back({{"type", "const_string"}, {"value", part}});
  };
  while (!text.empty()) {
    const SpecialTokens::value_type* first = nullptr;
    size_t begin = text.size();
    for (const auto& token : special) {
      if (const size_t at = text.find(token.first); at < begin) {
        begin = at;
        first = &token;
      }
    }
    add_text(text.substr(0, begin));
    if (!first) break;
    elements.push_back({{"type", "token"}, {"token", first->second}});
    text.remove_prefix(begin + first->first.size());
  }
  return elements;
}

Format TextUntil(const std::vector<std::string>& markers, const SpecialTokens& special) {
  Format tokens = Format::array();
  for (const std::string& marker : markers)
    if (const auto token = TokenOf(marker, special)) tokens.push_back(*token);
  if (tokens.size() == markers.size())
    return Format::array({{{"type", "any_tokens"}, {"exclude_tokens", std::move(tokens)}}});
  return Format::array({{{"type", "any_text"}, {"excludes", markers}}});
}

Format SequenceOf(Format elements) {
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

namespace {

bool HasKeyword(const SchemaJson& schema) {
  return std::ranges::any_of(schema.items(),
                             [](const auto& member) { return !IsAnnotation(member.key()); });
}

bool IsStrict(const SchemaJson& function) {
  const auto strict = function.find("strict");
  return strict != function.end() && *strict == true;
}

// How the arguments of calls are written.
struct ArgumentRules {
  JsonSpace space;
  MatchedCalls matched;
};

SchemaJson ArgumentsOf(const SchemaJson& function, const std::string& name,
                       const ArgumentRules& rules) {
  const bool matched = rules.matched == MatchedCalls::kAll || IsStrict(function);
  SchemaJson parameters = SchemaJson::object();
  if (matched) {
    const bool given = function.contains("parameters") && function["parameters"].is_object();
    // In OpenAI's API, a function without `parameters` takes no arguments.
    parameters = given ? function["parameters"] : SchemaJson{{"properties", SchemaJson::object()}};
  }
  if (!HasKeyword(parameters)) parameters["type"] = "object";
  SchemaJson format = {{"type", "json_schema"}};
  try {
    format["json_schema"] = SchemaRewriter(parameters).Run();
  } catch (const Error& e) {
    throw Invalid("parameters of tool {}: {}", name, e.what());
  }
  if (rules.space != JsonSpace::kAny) format["max_whitespace_cnt"] = 1;
  return format;
}

void Append(const SchemaJson& more, SchemaJson* elements) {
  elements->insert(elements->end(), more.begin(), more.end());
}

// The elements of the sequence that matches one call.
SchemaJson PartsOfCall(const SchemaJson& function, const ToolCallFormat& format,
                       const ArgumentRules& rules) {
  const auto name = function["name"].get<std::string>();
  std::string head = format.head + (format.quoted ? SchemaJson(name).dump() : name);
  if (format.indexed) head += ':';
  SchemaJson parts = MarkedText(head, format.special);
  if (format.indexed) parts.push_back({{"type", "regex"}, {"pattern", "[0-9]{1,3}"}});
  Append(MarkedText(format.between, format.special), &parts);
  parts.push_back(ArgumentsOf(function, name, rules));
  Append(MarkedText(format.tail, format.special), &parts);
  return parts;
}

// Converts a sequence to a tag, because the elements of XGrammar's lists are tags. The first part
// becomes the tag's begin marker, which is a text or a token.
SchemaJson TagOf(SchemaJson parts) {
  const SchemaJson first = parts.front();
  parts.erase(parts.begin());
  return {{"type", "tag"},
          {"begin", first["type"] == "token" ? first : first["value"]},
          {"content", SequenceOf(std::move(parts))},
          {"end", ""}};
}

std::vector<SchemaJson> FunctionsOf(const SchemaJson& tools,
                                    const std::optional<std::string>& name) {
  if (!tools.is_array()) throw Invalid("tools is not a list");
  std::vector<SchemaJson> functions;
  for (const SchemaJson& tool : tools) {
    SchemaJson function = tool.is_object() && tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string())
      throw Invalid("tools has an entry without the name of a function");
    if (!name || function["name"] == *name) functions.push_back(std::move(function));
  }
  if (functions.empty()) throw Invalid("tools has no function {}", name.value_or(""));
  return functions;
}

// One or more calls, from `format.open` to `format.close`.
SchemaJson Calls(const std::vector<SchemaJson>& functions, bool parallel,
                 const ToolCallFormat& format, const ArgumentRules& rules) {
  SchemaJson tags = SchemaJson::array();
  for (const SchemaJson& function : functions)
    tags.push_back(TagOf(PartsOfCall(function, format, rules)));
  SchemaJson elements = MarkedText(format.open, format.special);
  elements.push_back({{"type", "tags_with_separator"},
                      {"tags", std::move(tags)},
                      {"separator", format.separator},
                      {"at_least_one", true},
                      {"stop_after_first", !parallel}});
  Append(MarkedText(format.close, format.special), &elements);
  return SequenceOf(std::move(elements));
}

SchemaJson AnyOf(SchemaJson formats) { return {{"type", "or"}, {"elements", std::move(formats)}}; }

// The format of what follows the trigger. If `head` begins with the trigger, each call has its own
// trigger, so one call follows; otherwise all calls follow.
SchemaJson CallsAfterTrigger(const std::vector<SchemaJson>& functions, bool parallel,
                             ToolCallFormat format, const ArgumentRules& rules) {
  const std::string& trigger = format.trigger;
  if (format.open.empty() && format.head.starts_with(trigger)) {
    format.head.erase(0, trigger.size());
    SchemaJson calls = SchemaJson::array();
    for (const SchemaJson& function : functions)
      calls.push_back(SequenceOf(PartsOfCall(function, format, rules)));
    return AnyOf(std::move(calls));
  }
  if (format.open.starts_with(trigger)) format.open.erase(0, trigger.size());
  return Calls(functions, parallel, format, rules);
}

GrammarSource GrammarOf(SchemaJson format) {
  const SchemaJson whole = {{"type", "structural_tag"}, {"format", std::move(format)}};
  return {GrammarSource::Kind::kStructuralTag, whole.dump()};
}

}  // namespace

GrammarSource ToolCallGrammar(const nlohmann::ordered_json& tools,
                              const std::optional<std::string>& name, bool parallel,
                              const ToolCallFormat& format, JsonSpace space, MatchedCalls matched) {
  return GrammarOf(Calls(FunctionsOf(tools, name), parallel, format, {space, matched}));
}

GrammarSource TextWithCallsGrammar(const nlohmann::ordered_json& tools, bool parallel,
                                   const ToolCallFormat& format, JsonSpace space) {
  const std::vector<SchemaJson> functions = FunctionsOf(tools, std::nullopt);
  const ArgumentRules rules{space, MatchedCalls::kStrict};
  const auto text = [&](const std::string& trigger) -> SchemaJson {
    SchemaJson calls = CallsAfterTrigger(functions, parallel, format, rules);
    return {{"type", "dispatch"},
            {"rules", SchemaJson::array({SchemaJson::array({trigger, std::move(calls)})})},
            {"loop", parallel},
            {"excludes", format.excluded}};
  };
  // XGrammar matches free text by bytes. The bytes of a special token end with its text
  // (SpecialTokenBytes), so the token is recognised as the trigger too.
  if (!format.leading) return GrammarOf(text(format.trigger));
  const std::string space_pattern = "[ \\t\\r\\n]*";
  const SchemaJson calls = Calls(functions, parallel, format, rules);
  const SchemaJson blank = {{"type", "regex"}, {"pattern", space_pattern}};
  // `first` matches the first character of the text, which may be the first character of the
  // trigger. So the trigger after it lacks this character.
  const SchemaJson first = {{"type", "regex"},
                            {"pattern", space_pattern + "[^ \\t\\r\\n" + format.head.at(0) + ']'}};
  SchemaJson tagged = SchemaJson::array({blank});
  Append(MarkedText(format.trigger, format.special), &tagged);
  tagged.push_back(calls);
  return GrammarOf(AnyOf(SchemaJson::array(
      {SequenceOf(SchemaJson::array({blank, calls})), SequenceOf(std::move(tagged)),
       SequenceOf(SchemaJson::array({first, text(format.trigger.substr(1))})), blank})));
}

}  // namespace switchyard
