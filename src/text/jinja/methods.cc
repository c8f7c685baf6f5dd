#include <algorithm>
#include <array>
#include <string>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"

namespace switchyard::jinja {
namespace {

class BoundMethod : public Object {
 public:
  BoundMethod(Value self, Method method) : self_(std::move(self)), method_(method) {}

  std::string TypeName() const override { return "builtin_function_or_method"; }
  std::string Repr() const override { return "<built-in method>"; }
  bool IsCallable() const override { return true; }
  Value Call(Context& context, const Arguments& arguments) override {
    return method_(context, self_, arguments);
  }
  int depth() const override { return 1 + Depth(self_); }

 private:
  Value self_;
  Method method_;
};

struct NamedMethod {
  std::string_view name;
  Method method;
};

// ---- dict

Value View(Context& context, const Value& self, std::string label,
           Value (*pick)(Context&, const Dict::Entry&)) {
  std::vector<Value> items;
  context.Step(self.dict().size());
  for (const auto& entry : self.dict().entries()) items.push_back(pick(context, entry));
  return context.MakeList(std::move(items), List::Kind::kView, std::move(label));
}

Value DictItems(Context& context, const Value& self, const Arguments& arguments) {
  const Bound none("items", arguments, {});
  return View(context, self, "dict_items", [](Context& c, const Dict::Entry& entry) {
    return c.MakeList({entry.first, entry.second}, List::Kind::kTuple);
  });
}

Value DictKeys(Context& context, const Value& self, const Arguments& arguments) {
  const Bound none("keys", arguments, {});
  return View(context, self, "dict_keys",
              [](Context&, const Dict::Entry& entry) { return entry.first; });
}

Value DictValues(Context& context, const Value& self, const Arguments& arguments) {
  const Bound none("values", arguments, {});
  return View(context, self, "dict_values",
              [](Context&, const Dict::Entry& entry) { return entry.second; });
}

Value DictGet(Context& context, const Value& self, const Arguments& arguments) {
  if (!arguments.named.empty()) Fail("get() takes no keyword arguments");
  Bound bound("get", arguments, {"key", "default"}, 1);
  RequireHashable(context, *bound[0]);
  if (const Value* found = self.dict().Find(context, *bound[0])) return *found;
  return bound[1] ? *bound[1] : Value();
}

Value Copy(Context&, const Value& self, const Arguments& arguments) {
  const Bound none("copy", arguments, {});
  return self;
}

// ---- list and tuple

Value ListIndex(Context& context, const Value& self, const Arguments& arguments) {
  Bound bound("index", arguments, {"value", "start", "stop"}, 1);
  const auto& items = self.list().items;
  auto length = static_cast<Int>(items.size());
  auto clamp = [length](Int i) { return std::clamp<Int>(i < 0 ? i + length : i, 0, length); };
  Int stop = clamp(bound.IntegerOr(2, length));
  for (Int i = clamp(bound.IntegerOr(1, 0)); i < stop; ++i) {
    if (Equal(context, items[static_cast<size_t>(i)], *bound[0])) return Value::Integer(i);
  }
  if (self.list().kind == List::Kind::kTuple) Fail("tuple.index(x): x not in tuple");
  Fail("{} is not in list", Repr(context, *bound[0]).str());
}

Value ListCount(Context& context, const Value& self, const Arguments& arguments) {
  Bound bound("count", arguments, {"value"}, 1);
  const auto& items = self.list().items;
  return Value::Integer(std::count_if(items.begin(), items.end(), [&](const Value& item) {
    return Equal(context, item, *bound[0]);
  }));
}

constexpr std::array<NamedMethod, 5> kDictMethods = {{{"items", DictItems},
                                                      {"keys", DictKeys},
                                                      {"values", DictValues},
                                                      {"get", DictGet},
                                                      {"copy", Copy}}};
constexpr std::array<NamedMethod, 3> kListMethods = {
    {{"index", ListIndex}, {"count", ListCount}, {"copy", Copy}}};

// Methods that Jinja's immutable sandbox forbids.
constexpr std::array<std::string_view, 5> kDictMutators = {"clear", "pop", "popitem", "setdefault",
                                                           "update"};
constexpr std::array<std::string_view, 8> kListMutators = {"append", "clear", "pop",    "reverse",
                                                           "insert", "sort",  "extend", "remove"};

template <size_t n>
Method Find(const std::array<NamedMethod, n>& methods, std::string_view name) {
  auto found = std::find_if(methods.begin(), methods.end(),
                            [name](const NamedMethod& method) { return method.name == name; });
  return found == methods.end() ? nullptr : found->method;
}

template <size_t n>
bool IsAmong(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::optional<Value> FindMethod(Context& context, const Value& self, std::string_view name) {
  Method method = nullptr;
  bool forbidden = false;
  if (self.IsString()) {
    method = FindStringMethod(name);
  } else if (self.IsDict()) {
    method = Find(kDictMethods, name);
    forbidden = IsAmong(kDictMutators, name);
  } else if (self.IsList()) {
    bool list = self.list().kind == List::Kind::kList;
    bool tuple = self.list().kind == List::Kind::kTuple;
    if (list || tuple) method = Find(kListMethods, name);
    if (tuple && name == "copy") method = nullptr;
    forbidden = list && IsAmong(kListMutators, name);
  }
  if (forbidden) {
    return Value::MakeUndefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, TypeName(self)));
  }
  if (!method) return std::nullopt;
  return Value(ObjectPtr(context.New<BoundMethod>(0, self, method)));
}

}  // namespace switchyard::jinja
