// The `loop` variable.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/interpreter.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// The object that the body sees as `loop`. The interpreter also iterates with this object, which
// skips the items that the loop's filter rejects. The filter is evaluated lazily, since it may read
// variables that the body sets. loop.last tests items up to the next accepted one; loop.length
// tests all items.
class Loop : public Object {
 public:
  // Call Finish() before the interpreter is destroyed: variables may keep this object alive longer.
  Loop(Interpreter& interpreter, const For& node, ScopePtr scope, ListPtr source, int depth);

  bool HasCurrent() { return Reaches(index_); }
  const Value& Current() const { return At(index_); }
  void Advance() { ++index_; }
  void Finish() {
    interpreter_ = nullptr;
    scope_ = nullptr;
  }

  std::string TypeName() const override { return "LoopContext"; }
  std::string Repr() const override;
  std::optional<Value> GetAttribute(Context& context, std::string_view name) override;
  bool IsCallable() const override { return true; }
  Value Call(Context& context, const Arguments& arguments) override;
  int depth() const override { return 1 + source_->depth; }

  Value Cycle(const Arguments& arguments) const;
  bool Changed(Context& context, const Arguments& arguments);

 private:
  // True if there is an item at `index`; evaluates the filter up to it.
  bool Reaches(size_t index);
  const Value& At(size_t index) const {
    return node_.filter ? accepted_[index] : source_->items[index];
  }
  size_t Length();

  Interpreter* interpreter_;
  const For& node_;
  ScopePtr scope_;  // the enclosing scope
  ListPtr source_;
  std::vector<Value> accepted_;  // with a filter: accepted items so far
  size_t looked_at_ = 0;         // with a filter: number of items of source_ tested so far
  size_t index_ = 0;
  int depth_;  // recursion depth, from 0
  std::optional<std::vector<Value>> last_changed_;
};

}  // namespace switchyard::jinja
