// What constrains an output: a JSON Schema, any JSON object, a regular expression, a grammar in
// EBNF or Lark, a structural tag, or a list of choices.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace switchyard {

// White space between the parts of JSON.
enum class JsonSpace : uint8_t {
  kAny,     // any number of spaces, tabs and line breaks
  kPython,  // ", " and ": ", as json.dumps of Python; no line breaks
  kNone,    // "," and ":"
};

// The JsonSpace of a regular expression for white space. Supported: kAnyJsonSpace, and the empty
// expression (no white space). nullopt for other expressions.
inline constexpr const char* kAnyJsonSpace = R"([ \n\r\t]*)";
std::optional<JsonSpace> JsonSpaceOfPattern(const std::string& pattern);

// A grammar in source form. Equal sources have equal compiled grammars. The whole output matches
// `prefix`, and then either `opening` followed by `text`, or `alternative`.
struct GrammarSource {
  enum class Kind : uint8_t { kJsonSchema, kRegex, kEbnf, kLark, kStructuralTag };

  Kind kind = Kind::kEbnf;
  std::string text;
  JsonSpace space = JsonSpace::kAny;         // for kJsonSchema only
  std::string prefix, opening, alternative;  // JSON texts of structural tags; may be empty

  auto operator<=>(const GrammarSource&) const = default;
};

// These functions throw Error kInvalid for a constraint that cannot be honoured. The error names
// the keyword and its place. A keyword is never ignored, unless JSON Schema defines it as an
// annotation.

// Properties follow the order of the schema. An object with `properties` has further ones only if
// additionalProperties allows them.
GrammarSource JsonSchemaGrammar(const nlohmann::ordered_json& schema,
                                JsonSpace space = JsonSpace::kAny);
GrammarSource JsonObjectGrammar(JsonSpace space = JsonSpace::kAny);  // any JSON object
// The whole output matches the expression, with or without anchors.
GrammarSource RegexGrammar(std::string regex);
GrammarSource EbnfGrammar(std::string ebnf);  // the rule "root" is the output
GrammarSource LarkGrammar(std::string lark);  // the rule "start" is the output
// EBNF if the text has a "::=", else Lark (vLLM's rule).
GrammarSource EbnfOrLarkGrammar(std::string text);
GrammarSource ChoiceGrammar(const std::vector<std::string>& choices);  // one of the texts
// XGrammar's format {"type": "structural_tag", "format": …}, or SGLang's earlier one with
// "structures" and "triggers". Schemas within it follow the rules of JsonSchemaGrammar.
GrammarSource StructuralTagGrammar(const nlohmann::ordered_json& tag);

}  // namespace switchyard
