// For tests: requests to whole engines whose outputs are constrained by grammars.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/test_engine.h"
#include "grammar/compiler.h"

namespace switchyard {

// Bytes, and pieces of JSON in a few lengths, so that a text has many splits. The model's stop
// tokens keep their ids.
inline GrammarVocabulary VocabularyOf(const ModelConfig& model) {
  static const std::string kText =
      R"({"name": "", "kind": "green", "count": 12, "tags": [true, false],)";
  GrammarVocabulary vocabulary{.tokens = std::vector<std::string>(model.vocab_size),
                               .stop_ids = model.eos_token_ids};
  if (vocabulary.stop_ids.empty()) vocabulary.stop_ids = {0};
  for (int64_t id = 0; id < model.vocab_size; ++id) {
    const auto at = static_cast<size_t>(Below(id, 1, static_cast<int32_t>(kText.size()) - 6));
    vocabulary.tokens[id] =
        id < 256 ? std::string(1, static_cast<char>(id)) : kText.substr(at, 2 + Below(id, 2, 5));
  }
  for (const int32_t id : vocabulary.stop_ids) vocabulary.tokens[id] = "";
  return vocabulary;
}

inline std::vector<GrammarSource> Sources() {
  const auto schema = [](const char* text, JsonSpace space) {
    return JsonSchemaGrammar(nlohmann::ordered_json::parse(text), space);
  };
  const char* const record =
      R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 4}, "kind":
          {"enum": ["red", "green", "great"]}, "count": {"type": "integer", "minimum": 0, "maximum":
          40}, "flag": {"const": "always the same text"}}, "required": ["name", "kind", "count",
          "flag"], "additionalProperties": false})";
  return {schema(record, JsonSpace::kNone), schema(record, JsonSpace::kPython),
          schema(record, JsonSpace::kAny),
          schema(R"({"type": "array", "minItems": 2, "maxItems": 3, "items": {"type": "object",
              "properties": {"green": {"type": "boolean"}}, "required": ["green"],
              "additionalProperties": false}})",
                 JsonSpace::kPython),
          RegexGrammar("(name|count){2,9}: (true|false|12)"),
          ChoiceGrammar({"a long text without choice", "another text"}),
          // Free text up to an end, as reasoning before a constrained part.
          StructuralTagGrammar(nlohmann::ordered_json::parse(
              R"({"type": "structural_tag", "format": {"type": "sequence", "elements": [{"type":
                  "tag", "begin": "", "content": {"type": "any_text"}, "end": "e"}, {"type":
                  "const_string", "value": "\n<call>the arguments are: "}, {"type": "regex",
                  "pattern": "[a-z]{3,9}</call>"}]}})"))};
}

inline void DefineGrammars(Engine& engine) {
  const GrammarVocabulary vocabulary = VocabularyOf(engine.plan().model);
  const TokenTable table(vocabulary);
  engine.Tell(GrammarTokens{vocabulary.Encode()});
  uint64_t id = 0;
  for (const GrammarSource& source : Sources())
    engine.Tell(DefineGrammar{++id, CompileGrammar(source, table)->ToBytes()});
}

// Most requests have a grammar.
inline EngineRequest Constrained(uint64_t i, int32_t vocab) {
  EngineRequest request = RequestOf(i, vocab);
  request.grammar = i % (Sources().size() + 1);
  request.sampling.max_new_tokens += 20;
  if (request.grammar != 0) request.sampling.stop_token_ids.clear();
  return request;
}

}  // namespace switchyard
