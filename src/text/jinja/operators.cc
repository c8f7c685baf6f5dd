#include "text/jinja/operators.h"

#include <algorithm>
#include <compare>
#include <string>
#include <utility>

#include "text/jinja/builtins.h"
#include "text/jinja/print.h"
#include "text/jinja/utf8.h"

namespace switchyard::jinja {
namespace {

std::string_view Symbol(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "+";
    case BinaryOp::kSubtract:
      return "-";
    case BinaryOp::kMultiply:
      return "*";
    case BinaryOp::kDivide:
      return "/";
    case BinaryOp::kFloorDivide:
      return "//";
    case BinaryOp::kModulo:
      return "%";
    case BinaryOp::kPower:
      break;
  }
  return "** or pow()";
}

Text EscapedUnlessMarkup(const Text& text) { return text.markup() ? text : EscapeHtml(text); }

Value AddTexts(Context& context, const Text& a, const Text& b) {
  context.Scan(a.size() + b.size());
  bool markup = a.markup() || b.markup();
  Text out = markup ? EscapedUnlessMarkup(a) : a;
  out.Append(markup ? EscapedUnlessMarkup(b) : b);
  out.set_markup(markup);
  return context.Make(std::move(out));
}

bool SameSequenceKind(const Value& a, const Value& b) {
  return a.IsList() && b.IsList() && a.list().kind == b.list().kind && a.list().IsSequence();
}

Value Concatenate(Context& context, const List& a, const List& b) {
  context.Step(a.items.size() + b.items.size());
  std::vector<Value> items;
  items.reserve(a.items.size() + b.items.size());
  items.insert(items.end(), a.items.begin(), a.items.end());
  items.insert(items.end(), b.items.begin(), b.items.end());
  return context.MakeList(std::move(items), a.kind);
}

// Python's text * count and list * count.
Value Repeat(Context& context, const Value& value, Int count) {
  size_t length = value.IsString() ? value.text().size() : value.list().items.size();
  if (count < 0 || length == 0) count = 0;
  // Checks the count before it is multiplied; budgets are far below this limit.
  if (count > (Int{1} << 40) / static_cast<Int>(std::max<size_t>(length, 1)))
    Fail("repeated too often");
  auto times = static_cast<size_t>(count);
  if (value.IsString()) {
    context.Allocate(length * times);
    Text out;
    for (size_t i = 0; i < times; ++i) out.Append(value.text());
    return context.Make(std::move(out));
  }
  context.Step(length * times);
  context.Allocate(length * times * sizeof(Value));
  std::vector<Value> items;
  items.reserve(length * times);
  for (size_t i = 0; i < times; ++i) {
    items.insert(items.end(), value.list().items.begin(), value.list().items.end());
  }
  return context.MakeList(std::move(items), value.list().kind);
}

bool IsRepeatable(const Value& value) {
  return value.IsString() || (value.IsList() && (value.list().kind == List::Kind::kList ||
                                                 value.list().kind == List::Kind::kTuple));
}

bool IsIntegral(const Value& value) { return value.IsInteger() || value.IsBool(); }

[[noreturn]] void FailOperands(BinaryOp op, const Value& a, const Value& b) {
  if (op == BinaryOp::kAdd && a.IsString()) {
    Fail("can only concatenate str (not \"{}\") to str", TypeName(b));
  }
  if (op == BinaryOp::kAdd && a.IsList() && a.list().kind == List::Kind::kList) {
    Fail("can only concatenate list (not \"{}\") to list", TypeName(b));
  }
  if (op == BinaryOp::kMultiply && (IsRepeatable(a) || IsRepeatable(b))) {
    Fail("can't multiply sequence by non-int of type '{}'", TypeName(IsRepeatable(a) ? b : a));
  }
  Fail("unsupported operand type(s) for {}: '{}' and '{}'", Symbol(op), TypeName(a), TypeName(b));
}

// An index or slice bound; negative values count from the end.
Int RequireIndex(const Value& value) {
  if (!IsIntegral(value))
    Fail("slice indices must be integers or None or have an __index__ method");
  return value.integer();
}

Value UndefinedAttribute(const Value& object, std::string_view name) {
  return Value::MakeUndefined(fmt::format(
      "{} has no attribute {}", QuotedString(ObjectTypeName(object)), QuotedString(name)));
}

Value UndefinedElement(Context& context, const Value& object, const Value& key) {
  if (key.IsString()) return UndefinedAttribute(object, key.text().str());
  context.Step();
  return Value::MakeUndefined(
      fmt::format("{} has no element {}", ObjectTypeName(object), Repr(context, key).str()));
}

// The method or attribute `name`, or nullopt.
std::optional<Value> FindAttribute(Context& context, const Value& object, const std::string& name) {
  if (object.IsObject()) return object.object()->GetAttribute(context, name);
  if (object.IsList() && object.list().label == kGroupLabel) {
    if (name == "grouper") return object.list().items[0];
    if (name == "list") return object.list().items[1];
  }
  return FindMethod(context, object, name);
}

std::optional<Value> FindItem(Context& context, const Value& object, const Value& key) {
  if (object.IsDict()) {
    if (const Value* found = object.dict().Find(context, key)) return *found;
    return std::nullopt;
  }
  bool sequence = object.IsList() && object.list().IsSequence();
  if (!IsIntegral(key) || !(sequence || object.IsString())) return std::nullopt;
  Int index = key.integer();
  auto length = static_cast<Int>(*Length(context, object));
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  auto at = static_cast<size_t>(index);
  if (sequence) return object.list().items[at];
  const Text& text = object.text();
  size_t begin = OffsetOfCodePoint(text.str(), at);
  return context.Make(text.Sub(begin, OffsetOfCodePoint(text.str(), 1, begin)));
}

// Bounds of a slice after Python's clamping.
struct SliceRange {
  Int start, stop, step;
};

SliceRange ClampSlice(const Value& start, const Value& stop, const Value& step, Int length) {
  SliceRange range{0, length, step.IsNone() ? 1 : RequireIndex(step)};
  if (range.step == 0) Fail("slice step cannot be zero");
  bool backward = range.step < 0;
  Int lowest = backward ? -1 : 0;
  Int highest = backward ? length - 1 : length;
  auto clamp = [&](const Value& bound, Int otherwise) {
    if (bound.IsNone()) return otherwise;
    Int index = RequireIndex(bound);
    if (index < 0) index += length;
    return std::clamp(index, lowest, highest);
  };
  range.start = clamp(start, backward ? highest : lowest);
  range.stop = clamp(stop, backward ? lowest : highest);
  range.step = std::clamp(range.step, -length - 1, length + 1);
  return range;
}

template <typename Visit>
void VisitSlice(const SliceRange& range, Visit visit) {
  for (Int i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    visit(static_cast<size_t>(i));
  }
}

Value SliceText(Context& context, const Text& text, const Value& start, const Value& stop,
                const Value& step) {
  context.Scan(2 * text.size());
  const std::string& bytes = text.str();
  SliceRange range = ClampSlice(start, stop, step, static_cast<Int>(CountCodePoints(bytes)));
  if (range.step == 1) {
    auto first = static_cast<size_t>(range.start);
    size_t begin = OffsetOfCodePoint(bytes, first);
    size_t count = range.stop > range.start ? static_cast<size_t>(range.stop - range.start) : 0;
    return context.Make(text.Sub(begin, OffsetOfCodePoint(bytes, count, begin)));
  }
  context.Allocate(text.size() * sizeof(size_t));
  context.Step(text.size() / 4);
  std::vector<size_t> offsets;
  for (size_t at = 0; at < bytes.size(); at = OffsetOfCodePoint(bytes, 1, at))
    offsets.push_back(at);
  offsets.push_back(bytes.size());
  Text out;
  VisitSlice(range, [&](size_t i) { out.Append(text, offsets[i], offsets[i + 1]); });
  return context.Make(std::move(out));
}

bool EqualDicts(Context& context, const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = b.Find(context, key);
    if (!other || !Equal(context, value, *other)) return false;
  }
  return true;
}

bool IsAnyInteger(const Value& value) { return IsIntegral(value) || value.IsBigInteger(); }

std::string DigitsOf(const Value& value) {
  return value.IsBigInteger() ? value.big_integer() : IntegerString(value.integer());
}

// Compares two integers in decimal notation.
std::partial_ordering OrderDigits(std::string_view a, std::string_view b) {
  const bool negative = a.starts_with('-');
  if (negative != b.starts_with('-')) return negative ? -1 <=> 1 : 1 <=> -1;
  if (negative) std::swap(a, b);
  if (a.size() != b.size()) return a.size() <=> b.size();
  return a <=> b;
}

// `symbol`: the operator in the error message if Python cannot order the two.
std::partial_ordering Order(Context& context, const Value& a, const Value& b,
                            std::string_view symbol) {
  context.Step();
  RequireDefined(a);
  RequireDefined(b);
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsFloat() || b.IsFloat()) return a.AsDouble() <=> b.AsDouble();
    return a.integer() <=> b.integer();
  }
  if (IsAnyInteger(a) && IsAnyInteger(b)) return OrderDigits(DigitsOf(a), DigitsOf(b));
  if (a.IsString() && b.IsString()) {
    context.Scan(std::min(a.text().size(), b.text().size()));
    return a.text().str() <=> b.text().str();  // UTF-8 sorts like its code points
  }
  if (!SameSequenceKind(a, b) || a.list().kind == List::Kind::kRange) {
    Fail("'{}' not supported between instances of '{}' and '{}'", symbol, TypeName(a), TypeName(b));
  }
  const auto& x = a.list().items;
  const auto& y = b.list().items;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (!Equal(context, x[i], y[i])) return Order(context, x[i], y[i], symbol);
  }
  return x.size() <=> y.size();
}

}  // namespace

void RequireDefined(const Value& value) {
  if (value.IsUndefined()) throw Raise{value.undefined().message};
}

Value Apply(Context& context, BinaryOp op, const Value& a, const Value& b) {
  RequireDefined(a);
  RequireDefined(b);
  if (a.IsNumber() && b.IsNumber()) return Compute(op, a, b);
  if ((a.IsBigInteger() && (b.IsNumber() || b.IsBigInteger())) ||
      (b.IsBigInteger() && a.IsNumber()))
    Fail("integer too large");
  if (op == BinaryOp::kAdd) {
    if (a.IsString() && b.IsString()) return AddTexts(context, a.text(), b.text());
    if (SameSequenceKind(a, b) && a.list().kind != List::Kind::kRange) {
      return Concatenate(context, a.list(), b.list());
    }
  }
  if (op == BinaryOp::kMultiply) {
    if (IsRepeatable(a) && IsIntegral(b)) return Repeat(context, a, b.integer());
    if (IsRepeatable(b) && IsIntegral(a)) return Repeat(context, b, a.integer());
  }
  if (op == BinaryOp::kModulo && a.IsString())
    return context.Make(PercentFormat(context, a.text(), b));
  FailOperands(op, a, b);
}

Value Negate(const Value& a) {
  RequireDefined(a);
  if (!a.IsNumber()) Fail("bad operand type for unary -: '{}'", TypeName(a));
  return a.IsFloat() ? Value::Float(-a.floating())
                     : Compute(BinaryOp::kSubtract, Value::Integer(0), a);
}

Value UnaryPlus(const Value& a) {
  RequireDefined(a);
  if (!a.IsNumber()) Fail("bad operand type for unary +: '{}'", TypeName(a));
  return a.IsFloat() ? a : Value::Integer(a.integer());
}

bool Equal(Context& context, const Value& a, const Value& b) {
  context.Step();
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsFloat() || b.IsFloat()) return a.AsDouble() == b.AsDouble();
    return a.integer() == b.integer();
  }
  if (a.IsString() && b.IsString()) {
    context.Scan(std::min(a.text().size(), b.text().size()));
    return a.text().str() == b.text().str();
  }
  if (a.IsBigInteger() && b.IsBigInteger()) return a.big_integer() == b.big_integer();
  if (a.IsUndefined() || a.IsNone()) return a.IsUndefined() ? b.IsUndefined() : b.IsNone();
  if (a.IsDict() && b.IsDict())
    return &a.dict() == &b.dict() || EqualDicts(context, a.dict(), b.dict());
  if (a.IsObject() && b.IsObject()) return a.object() == b.object();
  if (!a.IsList() || !b.IsList()) return false;
  if (a.list_ptr() == b.list_ptr()) return true;
  return SameSequenceKind(a, b) &&
         std::equal(a.list().items.begin(), a.list().items.end(), b.list().items.begin(),
                    b.list().items.end(),
                    [&](const Value& x, const Value& y) { return Equal(context, x, y); });
}

bool Less(Context& context, const Value& a, const Value& b) {
  return Order(context, a, b, "<") == std::partial_ordering::less;
}

bool Compare(Context& context, CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEqual:
      return Equal(context, a, b);
    case CompareOp::kNotEqual:
      return !Equal(context, a, b);
    case CompareOp::kLess:
      return Less(context, a, b);
    case CompareOp::kLessEqual:
      return std::is_lteq(Order(context, a, b, "<="));
    case CompareOp::kGreater:
      return std::is_gt(Order(context, a, b, ">"));
    case CompareOp::kGreaterEqual:
      return std::is_gteq(Order(context, a, b, ">="));
    case CompareOp::kIn:
      return Contains(context, b, a);
    case CompareOp::kNotIn:
      break;
  }
  return !Contains(context, b, a);
}

bool Contains(Context& context, const Value& container, const Value& item) {
  if (container.IsString()) {
    RequireDefined(item);
    if (!item.IsString())
      Fail("'in <string>' requires string as left operand, not {}", TypeName(item));
    return FindBytes(context, container.text().str(), item.text().str()) != std::string::npos;
  }
  if (container.IsDict()) {
    RequireHashable(context, item);
    return container.dict().Find(context, item) != nullptr;
  }
  if (container.IsUndefined()) return false;
  if (!container.IsList()) Fail("argument of type '{}' is not iterable", TypeName(container));
  const auto& items = container.list().items;
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& x) { return Equal(context, x, item); });
}

Value GetAttribute(Context& context, const Value& object, const std::string& name) {
  RequireDefined(object);
  if (auto attribute = FindAttribute(context, object, name)) return *attribute;
  if (object.IsDict()) {
    context.Step(1 + object.dict().size() / 16);
    if (const Value* found = object.dict().Find(name)) return *found;
  }
  return UndefinedAttribute(object, name);
}

Value GetItem(Context& context, const Value& object, const Value& key) {
  RequireDefined(object);
  if (auto item = FindItem(context, object, key)) return *item;
  if (key.IsString()) {
    if (auto attribute = FindAttribute(context, object, key.text().str())) return *attribute;
  }
  return UndefinedElement(context, object, key);
}

Value Slice(Context& context, const Value& object, const Value& start, const Value& stop,
            const Value& step) {
  RequireDefined(object);
  if (object.IsString()) return SliceText(context, object.text(), start, stop, step);
  if (!object.IsList() || !object.list().IsSequence()) {
    return Value::MakeUndefined(fmt::format("{} has no element slice", ObjectTypeName(object)));
  }
  const List& list = object.list();
  std::vector<Value> items;
  SliceRange range = ClampSlice(start, stop, step, static_cast<Int>(list.items.size()));
  context.Step(list.items.size());
  VisitSlice(range, [&](size_t i) { items.push_back(list.items[i]); });
  bool tuple = list.kind == List::Kind::kTuple;
  return context.MakeList(std::move(items), tuple ? List::Kind::kTuple : List::Kind::kList);
}

Value Call(Context& context, const Value& callee, const Arguments& arguments) {
  RequireDefined(callee);
  if (!callee.IsObject() || !callee.object()->IsCallable()) {
    Fail("'{}' object is not callable", TypeName(callee));
  }
  return callee.object()->Call(context, arguments);
}

ListPtr Iterate(Context& context, const Value& value) {
  if (value.IsList()) return value.list_ptr();
  std::vector<Value> items;
  if (value.IsString()) {
    const Text& text = value.text();
    context.Step(text.size());
    for (size_t at = 0; at < text.size();) {
      size_t next = OffsetOfCodePoint(text.str(), 1, at);
      items.push_back(context.Make(text.Sub(at, next)));
      at = next;
    }
  } else if (value.IsDict()) {
    for (const auto& [key, unused] : value.dict().entries()) items.push_back(key);
  } else if (!value.IsUndefined()) {
    Fail("'{}' object is not iterable", TypeName(value));
  }
  return context.MakeList(std::move(items)).list_ptr();
}

std::optional<size_t> Length(Context& context, const Value& value) {
  if (value.IsUndefined()) return 0;
  if (value.IsDict()) return value.dict().size();
  if (value.IsList() && value.list().kind != List::Kind::kGenerator)
    return value.list().items.size();
  if (!value.IsString()) return std::nullopt;
  context.Scan(value.text().size());
  return CountCodePoints(value.text().str());
}

}  // namespace switchyard::jinja
