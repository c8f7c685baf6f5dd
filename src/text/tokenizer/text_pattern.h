// The "pattern" of tokenizer.json, a literal string or a regular expression, compiled.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/marked_text.h"

struct pcre2_real_code_8;

namespace switchyard {

// Immutable, thread-safe.
class TextPattern {
 public:
  // `where` names file and key in errors. Literal and Regex throw Error for an empty, malformed or
  // oversized pattern.
  static TextPattern Literal(std::string_view text, std::string_view where);
  static TextPattern Regex(std::string_view oniguruma, std::string_view where);

  // All non-overlapping matches in valid UTF-8 from left to right. Skips an empty match directly
  // after another match. Throws Error if the expression exceeds its backtracking limit on this
  // text.
  std::vector<TextRange> FindAll(std::string_view text) const;

  // The text of a literal pattern; empty for a regular expression.
  const std::string& literal() const { return literal_; }

 private:
  TextPattern(std::string literal, std::string where)
      : literal_(std::move(literal)), where_(std::move(where)) {}

  std::vector<TextRange> FindAllLiteral(std::string_view text) const;
  std::vector<TextRange> FindAllRegex(std::string_view text) const;

  std::string literal_;
  std::string where_;
  std::shared_ptr<pcre2_real_code_8> code_;  // null for a literal
};

}  // namespace switchyard
