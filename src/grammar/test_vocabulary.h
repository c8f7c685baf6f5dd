// Helpers for tests of grammars: a vocabulary of bytes and a few longer tokens.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "grammar/compiled_grammar.h"
#include "grammar/compiler.h"
#include "grammar/source.h"

namespace switchyard {

inline constexpr int32_t kTestEos = 256, kTestSpecial = 257, kTestMissing = 258;

// Ids 0 to 255 are the bytes.
inline GrammarVocabulary TestVocabulary() {
  GrammarVocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token :
       {"",      "\xff<special>", "",     "{\"", "\": ", "\",\"", "\"}",      "true",
        "false", "null",          "[[",   "]]",  "],",   "ab",    "abc",      "abdabc",
        "12",    "123",           "\\\"", "\\n", "  ",   "\n\n",  "é",        "日本",
        "},{",   "\"a\":",        ".5",   "-1",  "e+",   "the ",  "\xe6\x97", "\xa5x"})
    vocabulary.tokens.emplace_back(token);
  vocabulary.stop_ids = {kTestEos};
  return vocabulary;
}

inline const TokenTable& TestTable() {
  static const TokenTable table(TestVocabulary());
  return table;
}

// Whether the grammar accepts all bytes of `text`, and may end after them.
inline bool Matches(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text) {
  GrammarMatcher matcher(grammar);
  for (const char c : text)
    if (!matcher.Accept(static_cast<unsigned char>(c))) return false;
  return matcher.CanEnd();
}
inline bool Matches(const GrammarSource& source, std::string_view text) {
  return Matches(CompileGrammar(source, TestTable()), text);
}

// Whether the grammar accepts `text`, in which each "<special>" is one token.
inline bool MatchesMarked(const GrammarSource& source, std::string_view text) {
  constexpr std::string_view kMarker = "<special>";
  GrammarMatcher matcher(CompileGrammar(source, TestTable()));
  while (!text.empty()) {
    const bool marker = text.starts_with(kMarker);
    if (!matcher.Accept(marker ? kTestSpecial : static_cast<unsigned char>(text[0]))) return false;
    text.remove_prefix(marker ? kMarker.size() : 1);
  }
  return matcher.CanEnd();
}

inline nlohmann::ordered_json ParseTestJson(std::string_view text) {
  return nlohmann::ordered_json::parse(text);
}

// The message of the Error kInvalid that `act` throws; empty: it throws none.
inline std::string InvalidMessage(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kInvalid);
    return e.what();
  }
  return "";
}

}  // namespace switchyard
