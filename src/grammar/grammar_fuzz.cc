// Compiles arbitrary bytes as a grammar, with small limits. The first byte selects the kind. The
// only allowed failure is Error. Masks must have only tokens that the matcher accepts, also after
// CompiledGrammar::ToBytes and FromBytes. Forced tokens must not change the matcher.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/bounded_json.h"
#include "core/error.h"
#include "grammar/compiled_grammar.h"
#include "grammar/compiler.h"
#include "grammar/source.h"

namespace {

using switchyard::CompiledGrammar;
using switchyard::GrammarMatcher;
using switchyard::GrammarSource;
using switchyard::GrammarVocabulary;
using switchyard::TokenTable;

constexpr int32_t kEos = 256;

const TokenTable& Table() {
  static const TokenTable table([] {
    GrammarVocabulary vocabulary;
    for (int byte = 0; byte < 256; ++byte)
      vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
    for (const char* token : {"", "{\"", "\":", "true", "ab", "abc", "],", "12", "\\n", "é"})
      vocabulary.tokens.emplace_back(token);
    vocabulary.stop_ids = {kEos};
    return vocabulary;
  }());
  return table;
}

nlohmann::ordered_json Parsed(const std::string& text) {
  return nlohmann::ordered_json(switchyard::ParseBoundedJson(text, "fuzz"));
}

GrammarSource SourceOf(uint8_t kind, const std::string& text) {
  switch (kind % 5) {
    case 0:
      return switchyard::JsonSchemaGrammar(Parsed(text));
    case 1:
      return switchyard::RegexGrammar(text);
    case 2:
      return switchyard::EbnfGrammar(text);
    case 3:
      return switchyard::LarkGrammar(text);
    default:
      return switchyard::StructuralTagGrammar(Parsed(text));
  }
}

void Walk(const std::shared_ptr<const CompiledGrammar>& grammar, size_t steps) {
  GrammarMatcher matcher(grammar);
  std::vector<uint32_t> mask(switchyard::MaskWords(grammar->vocab_size())), again = mask, scratch;
  for (size_t step = 0; step < steps && !matcher.ended() && matcher.FillMask(mask); ++step) {
    switchyard::ForcedTokens(matcher, 4, &scratch);
    if (!matcher.FillMask(again) || again != mask) std::abort();
    int64_t last = -1;
    for (int64_t id = 0; id < grammar->vocab_size(); ++id)
      if (switchyard::MaskAllows(mask, id) && (last < 0 || (id + step) % 7 == 0)) last = id;
    if (!matcher.Accept(static_cast<int32_t>(last))) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    const auto grammar = CompileGrammar(SourceOf(data[0], text), Table(),
                                        {.source_bytes = 2048,
                                         .time = std::chrono::milliseconds(200),
                                         .mask_bytes = size_t{1} << 20});
    Walk(grammar, 20);
    Walk(CompiledGrammar::FromBytes(grammar->ToBytes(), Table()), 20);
  } catch (const switchyard::Error&) {
  }
  return 0;
}
