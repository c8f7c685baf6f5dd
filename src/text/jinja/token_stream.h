// The parser's position in the tokens.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/lexer.h"

namespace switchyard::jinja {

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
