// The `loop` variable.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/interpreter.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// Also walks the items: those that the loop's filter rejects are never seen. The filter runs no
// further ahead than asked (loop.last looks one item ahead, loop.length all), because it may read
// what the body sets.
class Loop : public Object {
 public:
  // Valid until Finish(): then the object may live on in variables, but no longer reaches the
  // interpreter.
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
  // Whether there is an item at `index`.
  bool Reaches(size_t index);
  const Value& At(size_t index) const {
    return node_.filter ? accepted_[index] : source_->items[index];
  }
  size_t Length();

  Interpreter* interpreter_;
  const For& node_;
  ScopePtr scope_;  // around the loop
  ListPtr source_;
  std::vector<Value> accepted_;  // with a filter: the items that passed so far
  size_t looked_at_ = 0;         // with a filter: items of source_ seen so far
  size_t index_ = 0;
  int depth_;  // of recursion, from 0
  std::optional<std::vector<Value>> last_changed_;
};

}  // namespace switchyard::jinja
