#include <algorithm>
#include <array>
#include <ctime>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"

namespace switchyard::jinja {
namespace {

using Function = Value (*)(Context& context, const Arguments& arguments);

class FunctionObject : public Object {
 public:
  FunctionObject(std::string name, Function function)
      : name_(std::move(name)), function_(function) {}

  std::string TypeName() const override { return "function"; }
  std::string Repr() const override { return "<function " + name_ + ">"; }
  bool IsCallable() const override { return true; }
  Value Call(Context& context, const Arguments& arguments) override {
    return function_(context, arguments);
  }

 private:
  std::string name_;
  Function function_;
};

// joiner(sep): returns an empty string at the first call, and `sep` at later calls.
class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}

  std::string TypeName() const override { return "Joiner"; }
  std::string Repr() const override { return "<Joiner>"; }
  bool IsCallable() const override { return true; }
  Value Call(Context& context, const Arguments&) override {
    return std::exchange(used_, true) ? separator_ : context.Make("", true);
  }
  int depth() const override { return 1 + Depth(separator_); }

 private:
  Value separator_;
  bool used_ = false;
};

// cycler(…): next() returns its items cyclically.
class Cycler : public Object {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {
    for (const Value& item : items_) depth_ = std::max(depth_, 1 + Depth(item));
  }

  std::string TypeName() const override { return "Cycler"; }
  std::string Repr() const override { return "<Cycler>"; }
  std::optional<Value> GetAttribute(Context& context, std::string_view name) override;
  int depth() const override { return depth_; }

  Value Next() {
    Value item = items_[at_];
    at_ = (at_ + 1) % items_.size();
    return item;
  }
  void Reset() { at_ = 0; }

 private:
  std::vector<Value> items_;
  size_t at_ = 0;
  int depth_ = 1;
};

// The bound methods cycler.next and cycler.reset.
class CyclerMethod : public Object {
 public:
  CyclerMethod(std::shared_ptr<Cycler> cycler, bool next)
      : cycler_(std::move(cycler)), next_(next) {}

  std::string TypeName() const override { return "method"; }
  std::string Repr() const override { return "<bound method Cycler>"; }
  bool IsCallable() const override { return true; }
  Value Call(Context&, const Arguments& arguments) override {
    const Bound none("cycler", arguments, {});
    if (next_) return cycler_->Next();
    cycler_->Reset();
    return {};
  }
  int depth() const override { return 1 + cycler_->depth(); }

 private:
  std::shared_ptr<Cycler> cycler_;
  bool next_;
};

std::optional<Value> Cycler::GetAttribute(Context& context, std::string_view name) {
  if (name == "current") return items_[at_];
  if (name != "next" && name != "reset") return std::nullopt;
  auto self = std::static_pointer_cast<Cycler>(shared_from_this());
  return Value(ObjectPtr(context.New<CyclerMethod>(0, std::move(self), name == "next")));
}

// Wraps an object that holds other values. Their nesting counts towards the limit.
Value MakeObject(ObjectPtr object) {
  if (object->depth() > kMaxNesting) Fail("objects nest deeper than {}", kMaxNesting);
  return Value(std::move(object));
}

Value Range(Context& context, const Arguments& arguments) {
  constexpr Int kMaxRange = 100'000;
  Bound bound("range", arguments, {"start", "stop", "step"}, 1);
  Int first = bound.IntegerOr(0, 0);
  Int start = bound[1] ? first : 0;
  Int stop = bound[1] ? bound.IntegerOr(1, 0) : first;
  Int step = bound.IntegerOr(2, 1);
  if (step == 0) Fail("range() arg 3 must not be zero");
  Int span = step > 0 ? stop - start : start - stop;
  Int stride = step > 0 ? step : -step;
  Int count = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (count > kMaxRange) {
    Fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMaxRange);
  }
  std::vector<Value> items;
  for (Int i = 0; i < count; ++i) items.push_back(Value::Integer(start + i * step));
  std::string label = step == 1 ? fmt::format("range({}, {})", start, stop)
                                : fmt::format("range({}, {}, {})", start, stop, step);
  return context.MakeList(std::move(items), List::Kind::kRange, std::move(label));
}

// The arguments of dict(…) and namespace(…): a mapping or pairs, then keywords.
Dict DictOf(Context& context, std::string_view callee, const Arguments& arguments) {
  if (arguments.positional.size() > 1) Fail("{} expected at most 1 argument", callee);
  Dict dict;
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    RequireDefined(source);
    if (source.IsDict()) {
      dict = source.dict();
    } else {
      ListPtr pairs = Iterate(context, source);
      for (const Value& item : pairs->items) {
        ListPtr pair = Iterate(context, item);
        if (pair->items.size() != 2) {
          Fail("dictionary update sequence element has length {}; 2 is required",
               pair->items.size());
        }
        dict.Set(context, pair->items[0], pair->items[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named)
    dict.Set(context, context.Make(name, true), value);
  return dict;
}

Value MakeDict(Context& context, const Arguments& arguments) {
  return context.MakeDict(DictOf(context, "dict", arguments));
}

Value MakeNamespace(Context& context, const Arguments& arguments) {
  auto object = std::make_shared<Namespace>();
  context.Keep(object);
  Dict attributes = DictOf(context, "namespace", arguments);
  for (const auto& [name, value] : attributes.entries()) object->SetAttribute(context, name, value);
  return Value(ObjectPtr(std::move(object)));
}

Value MakeJoiner(Context& context, const Arguments& arguments) {
  Bound bound("joiner", arguments, {"sep"});
  return MakeObject(context.New<Joiner>(0, bound[0] ? *bound[0] : context.Make(", ", true)));
}

Value MakeCycler(Context& context, const Arguments& arguments) {
  if (arguments.positional.empty()) Fail("at least one item has to be provided");
  return MakeObject(
      context.New<Cycler>(arguments.positional.size() * sizeof(Value), arguments.positional));
}

Value RaiseException(Context& context, const Arguments& arguments) {
  Bound bound("raise_exception", arguments, {"message"}, 1);
  throw Raise{Str(context, *bound[0]).str()};
}

Value StrftimeNow(Context& context, const Arguments& arguments) {
  Bound bound("strftime_now", arguments, {"format"}, 1);
  Text format = bound.TextOr(0, "");
  if (format.empty()) return context.Make("", true);
  std::time_t now = context.Now();
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[4096];
  size_t length = std::strftime(buffer, sizeof buffer, format.str().c_str(), &local);
  if (length == 0) Fail("strftime_now: want the formatted time to have 1 to 4095 bytes");
  return context.Make(std::string(buffer, length), format.trusted());
}

struct NamedFunction {
  std::string_view name;
  Function function;
};

constexpr std::array<NamedFunction, 7> kFunctions = {{{"range", Range},
                                                      {"namespace", MakeNamespace},
                                                      {"dict", MakeDict},
                                                      {"joiner", MakeJoiner},
                                                      {"cycler", MakeCycler},
                                                      {"raise_exception", RaiseException},
                                                      {"strftime_now", StrftimeNow}}};

}  // namespace

std::optional<Value> Namespace::GetAttribute(Context& context, std::string_view name) {
  context.Step(1 + attributes_.size() / 16);
  if (const Value* found = attributes_.Find(name)) return *found;
  return std::nullopt;
}

void Namespace::SetAttribute(Context& context, Value name, Value value) {
  if (!name.IsString() || !attributes_.Find(name.text().str()))
    context.Hold(2 * sizeof(Dict::Entry));
  attributes_.Set(context, std::move(name), std::move(value));
}

std::optional<Value> FindGlobal(std::string_view name) {
  // One stateless object per function, because a template may look it up millions of times.
  static const auto kObjects = [] {
    std::array<ObjectPtr, kFunctions.size()> objects;
    for (size_t i = 0; i < objects.size(); ++i) {
      objects[i] =
          std::make_shared<FunctionObject>(std::string(kFunctions[i].name), kFunctions[i].function);
    }
    return objects;
  }();
  for (size_t i = 0; i < kFunctions.size(); ++i) {
    if (kFunctions[i].name == name) return Value(kObjects[i]);
  }
  return std::nullopt;
}

}  // namespace switchyard::jinja
