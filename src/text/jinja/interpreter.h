// Evaluates a syntax tree with given variables and collects the output.
#pragma once

#include <memory>
#include <utility>

#include "text/jinja/ast.h"
#include "text/jinja/context.h"
#include "text/jinja/scope.h"
#include "text/jinja/text.h"

namespace switchyard::jinja {

// One rendering; lives on the stack of Template::Render. Errors are thrown as Raise; line() is the
// line of the error.
class Interpreter {
 public:
  // `globals` holds the variables of the rendering. The context outlives the interpreter.
  Interpreter(Context& context, ScopePtr globals) : context_(context), scope_(std::move(globals)) {}

  Text Run(const TemplateNode& root);

  // Line of the node that was evaluated last.
  int line() const { return line_; }

  // ---- for the values that represent macros and loops

  // `scope`: the scope in which the macro was defined.
  Value CallMacro(const MacroDefinition& macro, const ScopePtr& scope, const Arguments& arguments);
  // Runs the loop recursively over `iterable`, at recursion depth `depth`.
  Value RunLoop(const For& loop, const ScopePtr& scope, const Value& iterable, int depth);
  // True if the loop's `if` accepts `item`.
  bool PassesFilter(const For& loop, const ScopePtr& scope, const Value& item);

 private:
  // How a body ended.
  enum class Flow { kNormal, kBreak, kContinue };

  // Runs `action` in `scope`. The output goes to `out`, or to the current output if `out` is null.
  template <typename Action>
  void Within(ScopePtr scope, Text* out, Action action);
  // Runs `body` in a new child scope and returns its output. Sets `flow` to the way in which the
  // body ended.
  Text Capture(const Body& body, Flow& flow);
  ScopePtr NewScope() { return std::make_shared<Scope>(context_, scope_); }

  Flow Execute(const Body& body);
  Flow Execute(const Statement& statement);
  Flow ExecuteInNewScope(const Body& body);

  Flow Execute(const Data& node);
  Flow Execute(const Output& node);
  Flow Execute(const If& node);
  Flow Execute(const For& node);
  Flow Execute(const Set& node);
  Flow Execute(const SetBlock& node);
  Flow Execute(const std::unique_ptr<const MacroDefinition>& node);
  Flow Execute(const CallBlock& node);
  Flow Execute(const FilterBlock& node);
  Flow Execute(const With& node);
  Flow Execute(const Scoped& node) { return ExecuteInNewScope(node.body); }
  Flow Execute(const Break&) { return Flow::kBreak; }
  Flow Execute(const Continue&) { return Flow::kContinue; }

  // Returns how the loop's `else` body ended, because a `break` in it applies to the enclosing
  // loop.
  Flow ExecuteLoop(const For& loop, const Value& iterable, int depth);
  void Assign(const Target& target, const Value& value);
  void BindArguments(const MacroDefinition& macro, const Arguments& arguments);
  Value MakeMacro(const MacroDefinition& definition);
  Value ApplyBlockFilter(const ExprPtr& filter, Text text);
  void Print(const Text& text);
  void PrintValue(const Value& value);

  Value Evaluate(const Expr& expr);
  Value Evaluate(const Literal& node) { return node.value; }
  Value Evaluate(const Name& node);
  Value Evaluate(const ListLiteral& node);
  Value Evaluate(const DictLiteral& node);
  Value Evaluate(const Attribute& node);
  Value Evaluate(const Subscript& node);
  Value Evaluate(const SliceExpr& node);
  Value Evaluate(const Unary& node);
  Value Evaluate(const Binary& node);
  Value Evaluate(const Comparison& node);
  Value Evaluate(const Concatenation& node);
  Value Evaluate(const Logical& node);
  Value Evaluate(const Conditional& node);
  Value Evaluate(const CallExpr& node);
  Value Evaluate(const FilterExpr& node);
  Value Evaluate(const TestExpr& node);
  // Evaluates to None for a null expression.
  Value EvaluateOptional(const ExprPtr& expr) { return expr ? Evaluate(*expr) : Value(); }
  Arguments EvaluateArguments(const CallArguments& arguments);

  Context& context_;
  ScopePtr scope_;
  Text* out_ = nullptr;                // output of Print
  const Value* block_text_ = nullptr;  // input of the innermost filter of a filter or set block
  int line_ = 1;
  int depth_ = 0;  // nesting of statements and expressions, including macros
};

template <typename Action>
void Interpreter::Within(ScopePtr scope, Text* out, Action action) {
  struct Restore {
    Interpreter& self;
    ScopePtr scope;
    Text* out;
    ~Restore() {
      self.scope_ = std::move(scope);
      self.out_ = out;
    }
  };
  Restore restore{*this, std::move(scope_), out_};
  scope_ = std::move(scope);
  if (out) out_ = out;
  action();
}

}  // namespace switchyard::jinja
