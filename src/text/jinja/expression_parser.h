// The expression half of the parser; the statement half (parser.cc) drives it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/token_stream.h"

namespace switchyard::jinja {

// Recursive descent in the order of Jinja's precedence, loosest first. Bounds nesting and tree
// depth, so that nothing that walks the tree overflows its stack.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& stream) : stream_(stream) {}

  // With `conditional` false, stops before `if` (as the iterable of a for loop must).
  ExprPtr ParseExpression(bool conditional = true);
  // One or more expressions separated by commas; `in_parentheses` allows none.
  ExprPtr ParseTuple(bool conditional = true, bool in_parentheses = false);
  // `| filter | filter…` onto `input`, which may be null.
  ExprPtr ParseFilters(ExprPtr input);
  // The filters of a filter block, the first without its bar.
  ExprPtr ParseFilterBlock();

  // Names read since the last call, among caller, varargs and kwargs.
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
