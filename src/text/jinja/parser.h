// Parsers of templates and of their expressions.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace switchyard::jinja {

// Parses tokens to a syntax tree.

// Throws SyntaxError (lexer.h). `source` is valid UTF-8.
std::shared_ptr<const TemplateNode> ParseTemplate(std::string_view source);

// The parser of expressions; the parser of statements (parser.cc) calls it.

// Recursive descent in the order of Jinja's precedence, loosest first. Limits nesting and tree
// depth, so that recursion over the tree cannot overflow the stack.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& stream) : stream_(stream) {}

  // With `conditional` false, stops before `if` (needed for the iterable of a for loop).
  ExprPtr ParseExpression(bool conditional = true);
  // One or more expressions separated by commas; `in_parentheses` allows none.
  ExprPtr ParseTuple(bool conditional = true, bool in_parentheses = false);
  // Parses `| filter | filter…` applied to `input`, which may be null.
  ExprPtr ParseFilters(ExprPtr input);
  // The filters of a filter block; the first one has no bar.
  ExprPtr ParseFilterBlock();

  // Which of caller, varargs and kwargs were read since the last call.
  struct SpecialNames {
    bool caller = false, varargs = false, kwargs = false;
  };
  SpecialNames& special_names() { return special_names_; }

 private:
  ExprPtr ParseOr();
  ExprPtr ParseAnd();
  ExprPtr ParseNot();
  ExprPtr ParseComparison();
  ExprPtr ParseSum();
  ExprPtr ParseConcatenation();
  ExprPtr ParseProduct();
  ExprPtr ParsePower();
  ExprPtr ParseUnary(bool with_filters = true);
  ExprPtr ParsePrimary();
  ExprPtr ParseName();
  ExprPtr ParseStringLiteral();
  ExprPtr ParseListLiteral();
  ExprPtr ParseDictLiteral();
  ExprPtr ParsePostfix(ExprPtr node);
  ExprPtr ParseSubscript(ExprPtr object);
  ExprPtr ParseFiltersAndTests(ExprPtr node);
  ExprPtr ParseFilter(ExprPtr input);
  ExprPtr ParseTest(ExprPtr input);
  CallArguments ParseCallArguments();

  TokenStream& stream_;
  int nesting_ = 0;
  SpecialNames special_names_;
};

}  // namespace switchyard::jinja
