#include "grammar/source.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "grammar/schema_rewriter.h"

namespace switchyard {
namespace {

constexpr size_t kMaxChoices = 10'000;

// A string literal of XGrammar's EBNF.
std::string Literal(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

// Rewrites the schemas within a format of structural tags.
void RewriteTagSchemas(SchemaJson& format, const std::string& path, int depth) {
  if (depth > 64) throw Invalid("{}: the format is nested too deeply", path);
  if (format.is_array())
    for (size_t i = 0; i < format.size(); ++i)
      RewriteTagSchemas(format[i], fmt::format("{}/{}", path, i), depth + 1);
  if (!format.is_object()) return;
  // Properties of rewritten schemas have a fixed order, which any_order would remove.
  if (format.contains("json_schema") && format.contains("any_order") &&
      format["any_order"] != false)
    throw Invalid("{}: any_order is not supported: properties have the schema's order", path);
  for (auto& [key, value] : format.items()) {
    const std::string where = fmt::format("{}/{}", path, key);
    if (key == "json_schema") {
      try {
        value = SchemaRewriter(value).Run();
      } catch (const Error& e) {
        throw Invalid("{}: {}", where, e.what());
      }
    } else {
      RewriteTagSchemas(value, where, depth + 1);
    }
  }
}

// SGLang's earlier form: free text. Where it contains a trigger, one of the structures must begin.
SchemaJson FormatOfStructures(const SchemaJson& tag) {
  SchemaJson tags = SchemaJson::array();
  for (const SchemaJson& structure : tag["structures"]) {
    for (const char* key : {"begin", "end"})
      if (!structure.is_object() || !structure.contains(key) || !structure[key].is_string())
        throw Invalid("structures has an entry without the string {}", key);
    const SchemaJson schema =
        structure.contains("schema") ? structure["schema"] : SchemaJson::object();
    tags.push_back({{"type", "tag"},
                    {"begin", structure["begin"]},
                    {"content", {{"type", "json_schema"}, {"json_schema", schema}}},
                    {"end", structure["end"]}});
  }
  return {{"type", "triggered_tags"}, {"triggers", tag["triggers"]}, {"tags", std::move(tags)}};
}

}  // namespace

std::optional<JsonSpace> JsonSpaceOfPattern(const std::string& pattern) {
  if (pattern.empty()) return JsonSpace::kNone;
  // Accepts the four characters of white space in any order, escaped or not.
  if (!pattern.starts_with('[') || !pattern.ends_with("]*")) return std::nullopt;
  std::string characters;
  for (size_t i = 1; i + 2 < pattern.size(); ++i) {
    char c = pattern[i];
    if (c == '\\' && i + 3 < pattern.size()) {
      c = pattern[++i];
      c = c == 'n' ? '\n' : c == 'r' ? '\r' : c == 't' ? '\t' : c;
    }
    characters += c;
  }
  std::ranges::sort(characters);
  return characters == "\t\n\r " ? std::optional(JsonSpace::kAny) : std::nullopt;
}

GrammarSource JsonSchemaGrammar(const nlohmann::ordered_json& schema, JsonSpace space) {
  return {GrammarSource::Kind::kJsonSchema, SchemaRewriter(schema).Run().dump(), space};
}

GrammarSource JsonObjectGrammar(JsonSpace space) {
  return {GrammarSource::Kind::kJsonSchema, R"({"type":"object"})", space};
}

GrammarSource RegexGrammar(std::string regex) {
  return {GrammarSource::Kind::kRegex, std::move(regex)};
}

GrammarSource EbnfGrammar(std::string ebnf) {
  return {GrammarSource::Kind::kEbnf, std::move(ebnf)};
}

GrammarSource LarkGrammar(std::string lark) {
  return {GrammarSource::Kind::kLark, std::move(lark)};
}

GrammarSource EbnfOrLarkGrammar(std::string text) {
  const bool ebnf = text.find("::=") != std::string::npos;
  return ebnf ? EbnfGrammar(std::move(text)) : LarkGrammar(std::move(text));
}

GrammarSource ChoiceGrammar(const std::vector<std::string>& choices) {
  if (choices.empty()) throw Invalid("the list of choices is empty");
  if (choices.size() > kMaxChoices)
    throw Invalid("there are {} choices, want at most {}", choices.size(), kMaxChoices);
  std::string ebnf = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) ebnf += " | ";
    ebnf += Literal(choices[i]);
  }
  return EbnfGrammar(ebnf + "\n");
}

GrammarSource StructuralTagGrammar(const nlohmann::ordered_json& tag) {
  if (!tag.is_object()) throw Invalid("the structural tag is not a JSON object");
  SchemaJson whole = {{"type", "structural_tag"}};
  if (tag.contains("format")) {
    whole["format"] = tag["format"];
  } else if (tag.contains("structures") && tag["structures"].is_array() &&
             tag.contains("triggers") && tag["triggers"].is_array()) {
    whole["format"] = FormatOfStructures(tag);
  } else {
    throw Invalid("the structural tag has neither format nor structures and triggers");
  }
  RewriteTagSchemas(whole["format"], "#/format", 0);
  return {GrammarSource::Kind::kStructuralTag, whole.dump()};
}

}  // namespace switchyard
