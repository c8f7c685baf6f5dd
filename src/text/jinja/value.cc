#include "text/jinja/value.h"

#include <algorithm>

#include "text/jinja/context.h"
#include "text/jinja/operators.h"

namespace switchyard::jinja {

Value Value::IntegerFromDigits(std::string_view digits) {
  constexpr size_t kMaxIntDigits = 36;  // 10^36 < 2^120, the limit of arithmetic
  const bool negative = digits.starts_with('-');
  if (negative) digits.remove_prefix(1);
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.size() > kMaxIntDigits) {
    std::string text = (negative ? "-" : "") + std::string(digits);
    return Value(Data(std::make_shared<const BigInteger>(BigInteger{std::move(text)})));
  }
  Int value = 0;
  for (const char digit : digits) value = 10 * value + (digit - '0');
  return Integer(negative ? -value : value);
}

const Value* Dict::Find(Context& context, const Value& key) const {
  context.Step(1 + entries_.size() / 16);
  if (key.IsString()) return Find(key.text().str());
  for (const auto& [k, v] : entries_) {
    if (!k.IsString() && Equal(context, k, key)) return &v;
  }
  return nullptr;
}

const Value* Dict::Find(std::string_view key) const {
  for (const auto& [k, v] : entries_) {
    if (k.IsString() && k.text().str() == key) return &v;
  }
  return nullptr;
}

void Dict::Set(Context& context, Value key, Value value) {
  RequireHashable(context, key);
  const Value* found = Find(context, key);
  if (!found) {
    Append(std::move(key), std::move(value));
    return;
  }
  depth_ = std::max(depth_, 1 + Depth(value));
  auto entry = std::find_if(entries_.begin(), entries_.end(),
                            [found](const Entry& e) { return &e.second == found; });
  entry->second = std::move(value);
}

void Dict::Append(Value key, Value value) {
  depth_ = std::max({depth_, 1 + Depth(key), 1 + Depth(value)});
  entries_.emplace_back(std::move(key), std::move(value));
}

std::optional<Value> Object::GetAttribute(Context&, std::string_view) { return std::nullopt; }

Value Object::Call(Context&, const Arguments&) { Fail("'{}' object is not callable", TypeName()); }

int Depth(const Value& value) {
  if (value.IsList()) return value.list().depth;
  if (value.IsDict()) return value.dict().depth();
  if (value.IsObject()) return value.object()->depth();
  return 0;
}

void RequireHashable(Context& context, const Value& value) {
  context.Step();
  bool is_list = value.IsList() && value.list().kind == List::Kind::kList;
  if (value.IsDict() || is_list) Fail("unhashable type: '{}'", TypeName(value));
  if (!value.IsList() || value.list().kind != List::Kind::kTuple) return;
  for (const Value& item : value.list().items) RequireHashable(context, item);
}

std::string TypeName(const Value& value) {
  if (value.IsUndefined()) return "Undefined";
  if (value.IsNone()) return "NoneType";
  if (value.IsBool()) return "bool";
  if (value.IsInteger() || value.IsBigInteger()) return "int";
  if (value.IsFloat()) return "float";
  if (value.IsString()) return value.text().markup() ? "Markup" : "str";
  if (value.IsDict()) return "dict";
  if (value.IsObject()) return value.object()->TypeName();
  switch (value.list().kind) {
    case List::Kind::kList:
      return "list";
    case List::Kind::kTuple:
      return "tuple";
    case List::Kind::kGenerator:
      return "generator";
    case List::Kind::kRange:
      return "range";
    case List::Kind::kView:
      break;
  }
  return value.list().label;
}

std::string ObjectTypeName(const Value& value) {
  if (value.IsNone()) return "None";
  std::string type = TypeName(value);
  if (type == "Namespace" || type == "Cycler" || type == "Joiner")
    return "jinja2.utils." + type + " object";
  if (type == "LoopContext" || type == "Macro") return "jinja2.runtime." + type + " object";
  if (type == "Markup") return "markupsafe.Markup object";
  return type + " object";
}

bool Truth(const Value& value) {
  if (value.IsUndefined() || value.IsNone()) return false;
  if (value.IsBool()) return value.boolean();
  if (value.IsInteger()) return value.integer() != 0;
  if (value.IsFloat()) return value.floating() != 0;
  if (value.IsString()) return !value.text().empty();
  if (value.IsDict()) return value.dict().size() != 0;
  if (value.IsObject() || value.IsBigInteger()) return true;
  return value.list().kind == List::Kind::kGenerator || !value.list().items.empty();
}

}  // namespace switchyard::jinja
