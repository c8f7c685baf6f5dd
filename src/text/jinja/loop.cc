#include "text/jinja/loop.h"

#include <algorithm>

#include "text/jinja/operators.h"

namespace switchyard::jinja {
namespace {

// The bound methods loop.cycle and loop.changed.
class LoopMethod : public Object {
 public:
  LoopMethod(std::shared_ptr<Loop> loop, bool cycle) : loop_(std::move(loop)), cycle_(cycle) {}

  std::string TypeName() const override { return "method"; }
  std::string Repr() const override { return "<bound method LoopContext>"; }
  bool IsCallable() const override { return true; }
  Value Call(Context& context, const Arguments& arguments) override {
    return cycle_ ? loop_->Cycle(arguments) : Value::Bool(loop_->Changed(context, arguments));
  }
  int depth() const override { return 1 + loop_->depth(); }

 private:
  std::shared_ptr<Loop> loop_;
  bool cycle_;
};

}  // namespace

Loop::Loop(Interpreter& interpreter, const For& node, ScopePtr scope, ListPtr source, int depth)
    : interpreter_(&interpreter),
      node_(node),
      scope_(std::move(scope)),
      source_(std::move(source)),
      depth_(depth) {}

bool Loop::Reaches(size_t index) {
  if (!node_.filter) return index < source_->items.size();
  while (accepted_.size() <= index && looked_at_ < source_->items.size() && interpreter_) {
    const Value& item = source_->items[looked_at_++];
    if (interpreter_->PassesFilter(node_, scope_, item)) accepted_.push_back(item);
  }
  return index < accepted_.size();
}

size_t Loop::Length() {
  Reaches(source_->items.size());
  return node_.filter ? accepted_.size() : source_->items.size();
}

std::string Loop::Repr() const {
  return fmt::format("<LoopContext {}/{}>", index_ + 1,
                     node_.filter ? accepted_.size() : source_->items.size());
}

std::optional<Value> Loop::GetAttribute(Context&, std::string_view name) {
  auto integer = [](size_t value) { return Value::Integer(static_cast<Int>(value)); };
  if (name == "index") return integer(index_ + 1);
  if (name == "index0") return integer(index_);
  if (name == "first") return Value::Bool(index_ == 0);
  if (name == "last") return Value::Bool(!Reaches(index_ + 1));
  if (name == "length") return integer(Length());
  if (name == "revindex")
    return Value::Integer(static_cast<Int>(Length()) - static_cast<Int>(index_));
  if (name == "revindex0")
    return Value::Integer(static_cast<Int>(Length()) - static_cast<Int>(index_) - 1);
  if (name == "depth") return Value::Integer(depth_ + 1);
  if (name == "depth0") return Value::Integer(depth_);
  if (name == "previtem") {
    return index_ > 0 ? At(index_ - 1) : Value::MakeUndefined("there is no previous item");
  }
  if (name == "nextitem") {
    return Reaches(index_ + 1) ? At(index_ + 1) : Value::MakeUndefined("there is no next item");
  }
  if (name != "cycle" && name != "changed") return std::nullopt;
  auto self = std::static_pointer_cast<Loop>(shared_from_this());
  return Value(ObjectPtr(std::make_shared<LoopMethod>(std::move(self), name == "cycle")));
}

Value Loop::Call(Context&, const Arguments& arguments) {
  Bound bound("loop", arguments, {"iterable"}, 1);
  if (!node_.recursive) {
    Fail("The loop must have the 'recursive' marker to be called recursively.");
  }
  if (!interpreter_) Fail("a loop cannot be called after it has ended");
  return interpreter_->RunLoop(node_, scope_, *bound[0], depth_ + 1);
}

Value Loop::Cycle(const Arguments& arguments) const {
  if (arguments.positional.empty()) Fail("no items for cycling given");
  return arguments.positional[index_ % arguments.positional.size()];
}

bool Loop::Changed(Context& context, const Arguments& arguments) {
  const auto& values = arguments.positional;
  bool same = last_changed_ &&
              std::equal(values.begin(), values.end(), last_changed_->begin(), last_changed_->end(),
                         [&](const Value& a, const Value& b) { return Equal(context, a, b); });
  if (!same) last_changed_ = values;
  return !same;
}

}  // namespace switchyard::jinja
