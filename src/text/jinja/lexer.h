// Tokens of a template, and a stream of them for the parsers.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace switchyard::jinja {

// Splits template source into tokens, with Jinja's rules for white space around tags.

enum class TokenKind {
  kData,           // text between tags, white space already stripped
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,  // end of the template; always the last token
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // data, name, operator; a string's contents with escapes resolved
  Int integer = 0;
  double floating = 0;
};

// A syntax error and its line; Template::Parse turns it into a TemplateError.
struct SyntaxError {
  int line;
  std::string message;
};

// Tokenizes `source` like a Jinja2 environment with trim_blocks and lstrip_blocks. All line breaks
// become LF, and one at the end of the source is dropped. Comments are removed. Raw blocks become
// data. Throws SyntaxError.
std::vector<Token> Tokenize(std::string_view source);

// The parser's position in the tokens.

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Current() const { return tokens_[at_]; }
  const Token& Ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }

  // Returns the current token and advances; stays at the last token.
  const Token& Next() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }

  bool Is(TokenKind kind) const { return Current().kind == kind; }
  bool IsName(std::string_view name) const {
    return Is(TokenKind::kName) && Current().text == name;
  }
  bool IsOperator(std::string_view op) const {
    return Is(TokenKind::kOperator) && Current().text == op;
  }

  bool SkipName(std::string_view name) { return IsName(name) && (Next(), true); }
  bool SkipOperator(std::string_view op) { return IsOperator(op) && (Next(), true); }

  void ExpectOperator(std::string_view op) {
    if (!SkipOperator(op)) FailExpected(op);
  }
  void ExpectName(std::string_view name) {
    if (!SkipName(name)) FailExpected(name);
  }
  const Token& Expect(TokenKind kind) {
    if (!Is(kind)) FailExpected(Describe(kind));
    return Next();
  }

  [[noreturn]] void Fail(std::string message) const { Fail(std::move(message), Current().line); }
  [[noreturn]] void Fail(std::string message, int line) const {
    throw SyntaxError{line, std::move(message)};
  }

  // The name of a token in Jinja's messages.
  static std::string Describe(const Token& token) {
    if (token.kind == TokenKind::kName || token.kind == TokenKind::kOperator) return token.text;
    return std::string(Describe(token.kind));
  }

 private:
  static std::string_view Describe(TokenKind kind) {
    switch (kind) {
      case TokenKind::kData:
        return "template data / text";
      case TokenKind::kBlockBegin:
        return "begin of statement block";
      case TokenKind::kBlockEnd:
        return "end of statement block";
      case TokenKind::kVariableBegin:
        return "begin of print statement";
      case TokenKind::kVariableEnd:
        return "end of print statement";
      case TokenKind::kName:
        return "name";
      case TokenKind::kString:
        return "string";
      case TokenKind::kInteger:
        return "integer";
      case TokenKind::kFloat:
        return "float";
      case TokenKind::kOperator:
        return "operator";
      case TokenKind::kEnd:
        break;
    }
    return "end of template";
  }

  [[noreturn]] void FailExpected(std::string_view what) const {
    if (Is(TokenKind::kEnd)) Fail(fmt::format("unexpected end of template, expected '{}'.", what));
    Fail(fmt::format("expected token '{}', got '{}'", what, Describe(Current())));
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace switchyard::jinja
