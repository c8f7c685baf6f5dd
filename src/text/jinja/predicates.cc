#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"

namespace switchyard::jinja {
namespace {

Filter FindFilter(std::string_view name) {
  for (auto find : {FindTextFilter, FindSequenceFilter, FindSelectFilter, FindValueFilter,
                    FindHtmlFilter, FindLayoutFilter}) {
    if (Filter filter = find(name)) return filter;
  }
  return nullptr;
}

}  // namespace

bool HasFilter(std::string_view name) { return FindFilter(name) != nullptr; }

Value ApplyFilter(Context& context, const std::string& name, const Value& input,
                  const Arguments& arguments) {
  Filter filter = FindFilter(name);
  if (!filter) Fail("No filter named '{}'.", name);
  context.Step();
  return filter(context, input, arguments);
}

namespace {

using Predicate = bool (*)(Context& context, const Value& value, const Arguments& arguments);

bool IsSequence(const Value& value) {
  bool view = value.IsList() && value.list().kind != List::Kind::kGenerator;
  // Jinja checks for __getitem__ and len(). Dicts support both, while views lack __getitem__.
  return value.IsString() || value.IsDict() || value.IsUndefined() ||
         (view && value.list().kind != List::Kind::kView);
}

// A test that takes only the value.
template <bool (*holds)(const Value&)>
bool Plain(Context&, const Value& value, const Arguments& arguments) {
  const Bound none("test", arguments, {});
  return holds(value);
}

bool IsDefined(const Value& v) { return !v.IsUndefined(); }
bool IsUndefined(const Value& v) { return v.IsUndefined(); }
bool IsNone(const Value& v) { return v.IsNone(); }
bool IsBoolean(const Value& v) { return v.IsBool(); }
bool IsTrue(const Value& v) { return v.IsBool() && v.boolean(); }
bool IsFalse(const Value& v) { return v.IsBool() && !v.boolean(); }
bool IsString(const Value& v) { return v.IsString(); }
bool IsNumber(const Value& v) { return v.IsNumber() || v.IsBigInteger(); }
bool IsInteger(const Value& v) { return v.IsInteger() || v.IsBigInteger(); }
bool IsFloat(const Value& v) { return v.IsFloat(); }
bool IsMapping(const Value& v) { return v.IsDict(); }
bool IsIterable(const Value& v) {
  return v.IsString() || v.IsList() || v.IsDict() || v.IsUndefined();
}
bool IsCallable(const Value& v) {
  return v.IsUndefined() || (v.IsObject() && v.object()->IsCallable());
}
bool IsEscaped(const Value& v) { return v.IsString() && v.text().markup(); }

// value % divisor == remainder
bool HasRemainder(Context& context, const Value& value, const Value& divisor, Int remainder) {
  return Equal(context, Apply(context, BinaryOp::kModulo, value, divisor),
               Value::Integer(remainder));
}

bool IsOdd(Context& context, const Value& value, const Arguments& arguments) {
  const Bound none("odd", arguments, {});
  return HasRemainder(context, value, Value::Integer(2), 1);
}

bool IsEven(Context& context, const Value& value, const Arguments& arguments) {
  const Bound none("even", arguments, {});
  return HasRemainder(context, value, Value::Integer(2), 0);
}

bool IsDivisibleBy(Context& context, const Value& value, const Arguments& arguments) {
  return HasRemainder(context, value, *Bound("divisibleby", arguments, {"num"}, 1)[0], 0);
}

template <bool upper>
bool IsCased(Context& context, const Value& value, const Arguments& arguments) {
  const Bound none("test", arguments, {});
  Value text = context.Make(Str(context, value));
  return Truth(Call(context, GetAttribute(context, text, upper ? "isupper" : "islower"), {}));
}

bool IsSameAs(Context& context, const Value& value, const Arguments& arguments) {
  Bound bound("sameas", arguments, {"other"}, 1);
  const Value& other = *bound[0];
  if (value.IsList()) return other.IsList() && value.list_ptr() == other.list_ptr();
  if (value.IsDict()) return other.IsDict() && &value.dict() == &other.dict();
  bool same_type = value.IsBool() == other.IsBool() && value.IsFloat() == other.IsFloat();
  return same_type && Equal(context, value, other);
}

template <CompareOp op>
bool Compares(Context& context, const Value& value, const Arguments& arguments) {
  return Compare(context, op, value, *Bound("comparison", arguments, {"other"}, 1)[0]);
}

bool IsFilter(Context& context, const Value& value, const Arguments& arguments) {
  const Bound none("filter", arguments, {});
  return HasFilter(Str(context, value).str());
}

bool IsTest(Context& context, const Value& value, const Arguments& arguments);

Predicate FindPredicate(std::string_view name) {
  static const std::unordered_map<std::string_view, Predicate> predicates = {
      {"defined", Plain<IsDefined>},
      {"undefined", Plain<IsUndefined>},
      {"none", Plain<IsNone>},
      {"boolean", Plain<IsBoolean>},
      {"true", Plain<IsTrue>},
      {"false", Plain<IsFalse>},
      {"string", Plain<IsString>},
      {"number", Plain<IsNumber>},
      {"integer", Plain<IsInteger>},
      {"float", Plain<IsFloat>},
      {"mapping", Plain<IsMapping>},
      {"sequence", Plain<IsSequence>},
      {"iterable", Plain<IsIterable>},
      {"callable", Plain<IsCallable>},
      {"escaped", Plain<IsEscaped>},
      {"odd", IsOdd},
      {"even", IsEven},
      {"divisibleby", IsDivisibleBy},
      {"upper", IsCased<true>},
      {"lower", IsCased<false>},
      {"in", Compares<CompareOp::kIn>},
      {"sameas", IsSameAs},
      {"filter", IsFilter},
      {"test", IsTest},
      {"eq", Compares<CompareOp::kEqual>},
      {"equalto", Compares<CompareOp::kEqual>},
      {"==", Compares<CompareOp::kEqual>},
      {"ne", Compares<CompareOp::kNotEqual>},
      {"!=", Compares<CompareOp::kNotEqual>},
      {"lt", Compares<CompareOp::kLess>},
      {"lessthan", Compares<CompareOp::kLess>},
      {"<", Compares<CompareOp::kLess>},
      {"le", Compares<CompareOp::kLessEqual>},
      {"<=", Compares<CompareOp::kLessEqual>},
      {"gt", Compares<CompareOp::kGreater>},
      {"greaterthan", Compares<CompareOp::kGreater>},
      {">", Compares<CompareOp::kGreater>},
      {"ge", Compares<CompareOp::kGreaterEqual>},
      {">=", Compares<CompareOp::kGreaterEqual>},
  };
  auto found = predicates.find(name);
  return found == predicates.end() ? nullptr : found->second;
}

bool IsTest(Context& context, const Value& value, const Arguments& arguments) {
  const Bound none("test", arguments, {});
  return FindPredicate(Str(context, value).str()) != nullptr;
}

}  // namespace

bool Test(Context& context, const std::string& name, const Value& value,
          const Arguments& arguments) {
  Predicate predicate = FindPredicate(name);
  if (!predicate) Fail("No test named '{}'.", name);
  context.Step();
  return predicate(context, value, arguments);
}

}  // namespace switchyard::jinja
