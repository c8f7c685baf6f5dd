// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/value.h"

namespace switchyard::jinja {

struct Expr;
struct Statement;
using ExprPtr = std::unique_ptr<const Expr>;
using Body = std::vector<std::unique_ptr<const Statement>>;

// ---- expressions

enum class UnaryOp { kNot, kNegate, kAffirm };
enum class BinaryOp { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
enum class CompareOp { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

struct Literal {
  Value value;
};
struct Name {
  std::string name;
};
struct ListLiteral {
  std::vector<ExprPtr> items;
  bool tuple;
};
struct DictLiteral {
  std::vector<std::pair<ExprPtr, ExprPtr>> entries;
};
struct Attribute {
  ExprPtr object;
  std::string name;
};
struct Subscript {
  ExprPtr object;
  ExprPtr key;
};
struct SliceExpr {
  ExprPtr object;
  ExprPtr start, stop, step;  // null if omitted
};
struct Unary {
  UnaryOp op;
  ExprPtr operand;
};
struct Binary {
  BinaryOp op;
  ExprPtr left, right;
};
// `a < b <= c`: each operand is evaluated at most once.
struct Comparison {
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};
// `a ~ b ~ c`
struct Concatenation {
  std::vector<ExprPtr> parts;
};
struct Logical {
  bool conjunction;  // true for `and`, false for `or`
  ExprPtr left, right;
};
// `then if test else otherwise`; otherwise may be null.
struct Conditional {
  ExprPtr test, then, otherwise;
};
struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;         // *args, may be null
  ExprPtr double_star;  // **kwargs, may be null
};
struct CallExpr {
  ExprPtr callee;
  CallArguments arguments;
};
struct FilterExpr {
  ExprPtr input;  // null: the text of the enclosing filter or set block
  std::string name;
  CallArguments arguments;
};
struct TestExpr {
  ExprPtr input;
  std::string name;
  CallArguments arguments;
};

struct Expr {
  int line;
  int depth;  // depth of the tree below this node; the parser limits it
  std::variant<Literal, Name, ListLiteral, DictLiteral, Attribute, Subscript, SliceExpr, Unary,
               Binary, Comparison, Concatenation, Logical, Conditional, CallExpr, FilterExpr,
               TestExpr>
      node;
};

// ---- statements

// Target of an assignment: a name, `namespace.attribute`, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;
  std::vector<Target> items;
  bool tuple = false;
};

struct Data {
  Value text;  // trusted
};
struct Output {
  ExprPtr value;
};
struct If {
  struct Branch {
    ExprPtr test;
    Body body;
  };
  std::vector<Branch> branches;  // if, elif …
  Body otherwise;
};
struct For {
  Target target;
  ExprPtr iterable;
  ExprPtr filter;  // may be null
  Body body;
  Body otherwise;
  bool recursive;
};
struct Set {
  Target target;
  ExprPtr value;
};
struct SetBlock {
  Target target;
  ExprPtr filter;  // a chain of filters whose innermost input is null; may be null
  Body body;
};
struct MacroDefinition {
  struct Parameter {
    std::string name;
    ExprPtr otherwise;  // the default; may be null
  };
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
  // Whether the body reads the variable caller, varargs or kwargs. A call may pass a caller,
  // further positional or further named arguments only if the body reads them.
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};
struct CallBlock {
  std::unique_ptr<const MacroDefinition> caller;  // the block's body
  ExprPtr call;
};
struct FilterBlock {
  ExprPtr filter;
  Body body;
};
struct With {
  std::vector<std::pair<Target, ExprPtr>> variables;
  Body body;
};
// A body with its own scope: {% generation %}.
struct Scoped {
  Body body;
};
struct Break {};
struct Continue {};

struct Statement {
  int line;
  std::variant<Data, Output, If, For, Set, SetBlock, std::unique_ptr<const MacroDefinition>,
               CallBlock, FilterBlock, With, Scoped, Break, Continue>
      node;
};

// The whole template.
struct TemplateNode {
  Body body;
};

}  // namespace switchyard::jinja
