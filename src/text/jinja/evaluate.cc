// The part of the interpreter that evaluates expressions.
#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"

namespace switchyard::jinja {

Value Interpreter::Evaluate(const Expr& expr) {
  DepthGuard guard(depth_);
  const Context::Temporaries temporaries(context_);
  context_.Step();
  line_ = expr.line;
  return std::visit([this](const auto& node) { return Evaluate(node); }, expr.node);
}

Value Interpreter::Evaluate(const Name& node) {
  if (const Value* found = scope_->Find(node.name)) return *found;
  if (auto global = FindGlobal(node.name)) return *global;
  return Value::MakeUndefined(fmt::format("{} is undefined", QuotedString(node.name)));
}

Value Interpreter::Evaluate(const ListLiteral& node) {
  std::vector<Value> items;
  items.reserve(node.items.size());
  for (const ExprPtr& item : node.items) items.push_back(Evaluate(*item));
  return context_.MakeList(std::move(items), node.tuple ? List::Kind::kTuple : List::Kind::kList);
}

Value Interpreter::Evaluate(const DictLiteral& node) {
  Dict dict;
  for (const auto& [key, value] : node.entries) {
    Value k = Evaluate(*key);
    dict.Set(context_, std::move(k), Evaluate(*value));
  }
  return context_.MakeDict(std::move(dict));
}

Value Interpreter::Evaluate(const Attribute& node) {
  Value object = Evaluate(*node.object);
  return GetAttribute(context_, object, node.name);
}

Value Interpreter::Evaluate(const Subscript& node) {
  Value object = Evaluate(*node.object);
  return GetItem(context_, object, Evaluate(*node.key));
}

Value Interpreter::Evaluate(const SliceExpr& node) {
  Value object = Evaluate(*node.object);
  Value start = EvaluateOptional(node.start);
  Value stop = EvaluateOptional(node.stop);
  return Slice(context_, object, start, stop, EvaluateOptional(node.step));
}

Value Interpreter::Evaluate(const Unary& node) {
  Value operand = Evaluate(*node.operand);
  switch (node.op) {
    case UnaryOp::kNot:
      return Value::Bool(!Truth(operand));
    case UnaryOp::kNegate:
      return Negate(operand);
    case UnaryOp::kUnaryPlus:
      break;
  }
  return UnaryPlus(operand);
}

Value Interpreter::Evaluate(const Binary& node) {
  Value left = Evaluate(*node.left);
  return Apply(context_, node.op, left, Evaluate(*node.right));
}

Value Interpreter::Evaluate(const Comparison& node) {
  Value left = Evaluate(*node.first);
  for (const auto& [op, operand] : node.rest) {
    Value right = Evaluate(*operand);
    if (!Compare(context_, op, left, right)) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Interpreter::Evaluate(const Concatenation& node) {
  Text out;
  for (const ExprPtr& part : node.parts) {
    Text text = Str(context_, Evaluate(*part));
    context_.Allocate(text.size());
    out.Append(text);
  }
  return context_.Make(std::move(out));
}

Value Interpreter::Evaluate(const Logical& node) {
  Value left = Evaluate(*node.left);
  return Truth(left) == node.conjunction ? Evaluate(*node.right) : left;
}

Value Interpreter::Evaluate(const Conditional& node) {
  if (Truth(Evaluate(*node.test))) return Evaluate(*node.then);
  if (node.otherwise) return Evaluate(*node.otherwise);
  return Value::MakeUndefined(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined.",
      node.then->line));
}

Arguments Interpreter::EvaluateArguments(const CallArguments& arguments) {
  Arguments out;
  for (const ExprPtr& argument : arguments.positional)
    out.positional.push_back(Evaluate(*argument));
  for (const auto& [name, value] : arguments.named) out.named.emplace_back(name, Evaluate(*value));
  if (arguments.star) {
    ListPtr more = Iterate(context_, Evaluate(*arguments.star));
    context_.Step(more->items.size());
    context_.Allocate(more->items.size() * sizeof(Value));
    out.positional.insert(out.positional.end(), more->items.begin(), more->items.end());
  }
  if (arguments.double_star) {
    Value more = Evaluate(*arguments.double_star);
    if (!more.IsDict()) Fail("argument after ** must be a mapping, not {}", TypeName(more));
    for (const auto& [key, value] : more.dict().entries()) {
      if (!key.IsString()) Fail("keywords must be strings");
      context_.Step();
      context_.Allocate(sizeof(out.named[0]) + key.text().size());
      out.named.emplace_back(key.text().str(), value);
    }
  }
  return out;
}

Value Interpreter::Evaluate(const CallExpr& node) {
  Value callee = Evaluate(*node.callee);
  int line = line_;
  Arguments arguments = EvaluateArguments(node.arguments);
  line_ = line;
  return Call(context_, callee, arguments);
}

Value Interpreter::Evaluate(const FilterExpr& node) {
  Value input = node.input ? Evaluate(*node.input) : *block_text_;
  return ApplyFilter(context_, node.name, input, EvaluateArguments(node.arguments));
}

Value Interpreter::Evaluate(const TestExpr& node) {
  Value input = Evaluate(*node.input);
  return Value::Bool(Test(context_, node.name, input, EvaluateArguments(node.arguments)));
}

}  // namespace switchyard::jinja
