#include "text/jinja/interpreter.h"

#include "text/jinja/builtins.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"

namespace switchyard::jinja {

Text Interpreter::Run(const TemplateNode& root) {
  Text out;
  Within(NewScope(), &out, [&] { Execute(root.body); });
  return out;
}

Text Interpreter::Capture(const Body& body, Flow& flow) {
  Text out;
  Within(NewScope(), &out, [&] { flow = Execute(body); });
  return out;
}

void Interpreter::Print(const Text& text) {
  if (text.size() > context_.max_output() - out_->size()) {
    Fail("the output is longer than {} bytes", context_.max_output());
  }
  context_.Scan(text.size());
  context_.Allocate(out_->GrowthBy(text.size(), text.runs()));
  const size_t runs_before = out_->runs();
  out_->Append(text);
  // Counts the memory of Rendered::runs. `struct Run` is the type; Run is also a function of this
  // class.
  context_.Allocate((out_->runs() - runs_before) * sizeof(struct Run));
}

Interpreter::Flow Interpreter::Execute(const Body& body) {
  for (const auto& statement : body) {
    Flow flow = Execute(*statement);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::Execute(const Statement& statement) {
  DepthGuard guard(depth_);
  context_.Step();
  line_ = statement.line;
  return std::visit([this](const auto& node) { return Execute(node); }, statement.node);
}

Interpreter::Flow Interpreter::ExecuteInNewScope(const Body& body) {
  Flow flow = Flow::kNormal;
  Within(NewScope(), nullptr, [&] { flow = Execute(body); });
  return flow;
}

Interpreter::Flow Interpreter::Execute(const Data& node) {
  Print(node.text.text());
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::Execute(const Output& node) {
  PrintValue(Evaluate(*node.value));
  return Flow::kNormal;
}

void Interpreter::PrintValue(const Value& value) {
  if (value.IsString()) return Print(value.text());
  Text text;
  {
    const Context::Temporaries temporaries(context_);
    text = Str(context_, value);
  }
  Print(text);
}

Interpreter::Flow Interpreter::Execute(const If& node) {
  for (const If::Branch& branch : node.branches) {
    if (Truth(Evaluate(*branch.test))) return Execute(branch.body);
  }
  return Execute(node.otherwise);
}

Interpreter::Flow Interpreter::Execute(const For& node) {
  return ExecuteLoop(node, Evaluate(*node.iterable), 0);
}

Interpreter::Flow Interpreter::ExecuteLoop(const For& node, const Value& iterable, int depth) {
  auto loop = std::make_shared<Loop>(*this, node, scope_, Iterate(context_, iterable), depth);
  if (loop->depth() > kMaxNesting) Fail("lists nest deeper than {}", kMaxNesting);
  struct Finish {
    Loop& loop;
    ~Finish() { loop.Finish(); }
  } finish{*loop};
  // As in Jinja2, `else` runs if no iteration reached the end of the body. So it also runs if every
  // iteration ended by `break` or `continue`.
  bool otherwise = true;
  for (; loop->HasCurrent(); loop->Advance()) {
    context_.Step();
    Flow flow = Flow::kNormal;
    Within(NewScope(), nullptr, [&] {
      Assign(node.target, loop->Current());
      scope_->Set("loop", Value(ObjectPtr(loop)));
      flow = Execute(node.body);
    });
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNormal) otherwise = false;
  }
  return otherwise ? ExecuteInNewScope(node.otherwise) : Flow::kNormal;
}

Value Interpreter::RunLoop(const For& loop, const ScopePtr& scope, const Value& iterable,
                           int depth) {
  DepthGuard guard(depth_);
  Text out;
  Within(scope, &out, [&] { ExecuteLoop(loop, iterable, depth); });
  return context_.Make(std::move(out));
}

bool Interpreter::PassesFilter(const For& loop, const ScopePtr& scope, const Value& item) {
  bool passes = false;
  Within(std::make_shared<Scope>(context_, scope), nullptr, [&] {
    Assign(loop.target, item);
    passes = Truth(Evaluate(*loop.filter));
  });
  return passes;
}

Interpreter::Flow Interpreter::Execute(const Set& node) {
  Assign(node.target, Evaluate(*node.value));
  return Flow::kNormal;
}

void Interpreter::Assign(const Target& target, const Value& value) {
  if (!target.attribute.empty()) {
    const Value* object = scope_->Find(target.name);
    auto* space =
        object && object->IsObject() ? dynamic_cast<Namespace*>(object->object().get()) : nullptr;
    if (!space) Fail("cannot assign attribute on non-namespace object");
    space->SetAttribute(context_, context_.Make(target.attribute, true), value);
    return;
  }
  if (!target.tuple) {
    scope_->Set(target.name, value);
    return;
  }
  if (!value.IsList() && !value.IsString() && !value.IsDict() && !value.IsUndefined()) {
    Fail("cannot unpack non-iterable {} object", TypeName(value));
  }
  ListPtr list = Iterate(context_, value);
  size_t wanted = target.items.size();
  size_t given = list->items.size();
  if (given > wanted) Fail("too many values to unpack (expected {})", wanted);
  if (given < wanted) Fail("not enough values to unpack (expected {}, got {})", wanted, given);
  for (size_t i = 0; i < wanted; ++i) Assign(target.items[i], list->items[i]);
}

Interpreter::Flow Interpreter::Execute(const SetBlock& node) {
  const Context::Temporaries captured(context_);
  Flow flow = Flow::kNormal;
  Text text = Capture(node.body, flow);
  if (flow == Flow::kNormal) Assign(node.target, ApplyBlockFilter(node.filter, std::move(text)));
  return flow;
}

Interpreter::Flow Interpreter::Execute(const FilterBlock& node) {
  Flow flow = Flow::kNormal;
  Value value;
  {
    const Context::Temporaries captured(context_);
    Text text = Capture(node.body, flow);
    if (flow == Flow::kNormal) value = ApplyBlockFilter(node.filter, std::move(text));
  }
  if (flow == Flow::kNormal) PrintValue(value);
  return flow;
}

Value Interpreter::ApplyBlockFilter(const ExprPtr& filter, Text text) {
  Value input = context_.Make(std::move(text));
  if (!filter) return input;
  struct Restore {
    const Value*& slot;
    const Value* old;
    ~Restore() { slot = old; }
  } restore{block_text_, block_text_};
  block_text_ = &input;
  return Evaluate(*filter);
}

Interpreter::Flow Interpreter::Execute(const With& node) {
  ScopePtr scope = NewScope();
  std::vector<Value> values;
  for (const auto& [target, value] : node.variables) values.push_back(Evaluate(*value));
  Flow flow = Flow::kNormal;
  Within(std::move(scope), nullptr, [&] {
    for (size_t i = 0; i < values.size(); ++i) Assign(node.variables[i].first, values[i]);
    flow = Execute(node.body);
  });
  return flow;
}

}  // namespace switchyard::jinja
