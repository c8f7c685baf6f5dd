// The part of the interpreter that defines and calls macros.
#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"

namespace switchyard::jinja {
namespace {

class Macro : public Object {
 public:
  Macro(Interpreter& interpreter, const MacroDefinition& definition, ScopePtr scope)
      : interpreter_(interpreter), definition_(definition), scope_(std::move(scope)) {}

  std::string TypeName() const override { return "Macro"; }
  std::string Repr() const override { return fmt::format("<Macro '{}'>", definition_.name); }
  bool IsCallable() const override { return true; }
  Value Call(Context&, const Arguments& arguments) override {
    return interpreter_.CallMacro(definition_, scope_, arguments);
  }
  std::optional<Value> GetAttribute(Context& context, std::string_view name) override {
    if (name == "name") return context.Make(definition_.name, true);
    if (name != "arguments") return std::nullopt;
    std::vector<Value> names;
    for (const auto& parameter : definition_.parameters)
      names.push_back(context.Make(parameter.name, true));
    return context.MakeList(std::move(names), List::Kind::kTuple);
  }

  // Breaks the cycle between the macro and its scope of definition, which usually holds the macro.
  void Release() override { scope_->Clear(); }

 private:
  Interpreter& interpreter_;
  const MacroDefinition& definition_;
  ScopePtr scope_;
};

}  // namespace

Value Interpreter::MakeMacro(const MacroDefinition& definition) {
  auto macro = std::make_shared<Macro>(*this, definition, scope_);
  context_.Keep(macro);
  return Value(ObjectPtr(std::move(macro)));
}

Interpreter::Flow Interpreter::Execute(const std::unique_ptr<const MacroDefinition>& node) {
  scope_->Set(node->name, MakeMacro(*node));
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::Execute(const CallBlock& node) {
  const auto& call = std::get<CallExpr>(node.call->node);
  Value callee = Evaluate(*call.callee);
  Value result;
  {
    const Context::Temporaries temporaries(context_);
    Arguments arguments = EvaluateArguments(call.arguments);
    arguments.named.emplace_back("caller", MakeMacro(*node.caller));
    result = Call(context_, callee, arguments);
  }
  PrintValue(result);
  return Flow::kNormal;
}

Value Interpreter::CallMacro(const MacroDefinition& macro, const ScopePtr& scope,
                             const Arguments& arguments) {
  DepthGuard guard(depth_);
  Text out;
  Within(std::make_shared<Scope>(context_, scope), &out, [&] {
    BindArguments(macro, arguments);
    Execute(macro.body);
  });
  return context_.Make(std::move(out));
}

// Binds arguments in the current scope, which is the macro's, because defaults may refer to earlier
// parameters.
void Interpreter::BindArguments(const MacroDefinition& macro, const Arguments& arguments) {
  size_t count = macro.parameters.size();
  size_t given = arguments.positional.size();
  std::vector<bool> used(arguments.named.size(), false);
  auto take_named = [&](std::string_view name) -> const Value* {
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i] || arguments.named[i].first != name) continue;
      used[i] = true;
      return &arguments.named[i].second;
    }
    return nullptr;
  };
  for (size_t i = 0; i < count; ++i) {
    const auto& parameter = macro.parameters[i];
    const Value* value = i < given ? &arguments.positional[i] : take_named(parameter.name);
    if (value) {
      scope_->Set(parameter.name, *value);
    } else if (parameter.otherwise) {
      scope_->Set(parameter.name, Evaluate(*parameter.otherwise));
    } else {
      scope_->Set(parameter.name, Value::MakeUndefined(fmt::format("parameter {} was not provided",
                                                                   QuotedString(parameter.name))));
    }
  }
  if (macro.uses_caller) {
    const Value* caller = take_named("caller");
    scope_->Set("caller", caller ? *caller : Value::MakeUndefined("No caller defined"));
  }
  Dict rest;
  for (size_t i = 0; i < used.size(); ++i) {
    const auto& [name, value] = arguments.named[i];
    if (used[i]) continue;
    if (!macro.uses_kwargs && name == "caller") Fail("macro '{}' takes no caller", macro.name);
    if (!macro.uses_kwargs) Fail("macro '{}' takes no keyword argument '{}'", macro.name, name);
    rest.Set(context_, context_.Make(name, true), value);
  }
  if (macro.uses_kwargs) scope_->Set("kwargs", context_.MakeDict(std::move(rest)));
  if (given > count && !macro.uses_varargs) {
    Fail("macro '{}' takes not more than {} argument(s)", macro.name, count);
  }
  if (macro.uses_varargs) {
    auto first = arguments.positional.begin() + static_cast<ptrdiff_t>(std::min(given, count));
    scope_->Set("varargs",
                context_.MakeList({first, arguments.positional.end()}, List::Kind::kTuple));
  }
}

}  // namespace switchyard::jinja
