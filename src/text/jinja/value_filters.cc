#include <cmath>
#include <cstdlib>
#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/utf8.h"

namespace switchyard::jinja {
namespace {

Value Default(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("default", arguments, {"default_value", "boolean"});
  bool replace = input.IsUndefined() || (bound.TruthOr(1, false) && !Truth(input));
  if (!replace) return input;
  return bound[0] ? *bound[0] : context.Make("", true);
}

// Python's int(text, base): allows surrounding white space, a sign, and single underscores between
// digits.
std::optional<Int> ParseInteger(std::string_view text, int base) {
  size_t end = TrimmedEnd(text);
  size_t at = SkipSpace(text);
  bool negative = at < end && text[at] == '-';
  if (at < end && (text[at] == '-' || text[at] == '+')) ++at;
  std::string_view prefix = base == 16 ? "xX" : base == 8 ? "oO" : base == 2 ? "bB" : "";
  if (at + 2 < end && text[at] == '0' && prefix.find(text[at + 1]) != std::string_view::npos)
    at += 2;
  if (at >= end) return std::nullopt;
  Int value = 0;
  bool digit_before = false;
  for (; at < end; ++at) {
    char c = text[at];
    if (c == '_' && digit_before && at + 1 < end) {
      digit_before = false;
      continue;
    }
    int lower = c | 0x20;
    int digit = c >= '0' && c <= '9'           ? c - '0'
                : lower >= 'a' && lower <= 'z' ? lower - 'a' + 10
                                               : 99;
    if (digit >= base) return std::nullopt;
    if (value > (Int{1} << 110)) Fail("integer too large");
    value = value * base + digit;
    digit_before = true;
  }
  return negative ? -value : value;
}

// Python's float(text).
std::optional<double> ParseFloat(std::string_view text) {
  size_t begin = SkipSpace(text);
  size_t end = TrimmedEnd(text);
  if (begin >= end) return std::nullopt;
  std::string digits(text.substr(begin, end - begin));
  if (digits.find_first_of("xXpP") != std::string::npos)
    return std::nullopt;  // strtod would accept hexadecimal
  char* rest = nullptr;
  double value = std::strtod(digits.c_str(), &rest);
  if (rest != digits.c_str() + digits.size()) return std::nullopt;
  return value;
}

std::optional<double> ToFloat(Context& context, const Value& input) {
  RequireDefined(input);
  if (input.IsNumber()) return input.AsDouble();
  if (input.IsBigInteger()) return ParseFloat(input.big_integer());
  if (!input.IsString()) return std::nullopt;
  context.Scan(input.text().size());
  return ParseFloat(input.text().str());
}

Value IntFilter(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("int", arguments, {"default", "base"});
  Int base = bound.IntegerOr(1, 10);
  if (input.IsInteger() || input.IsBool()) return Value::Integer(input.integer());
  if (input.IsBigInteger()) return input;
  if (input.IsString() && base >= 2 && base <= 36) {
    context.Scan(16 * input.text().size());
    if (auto value = ParseInteger(input.text().str(), static_cast<int>(base)))
      return Value::Integer(*value);
  }
  auto value = ToFloat(context, input);
  if (!value || std::isnan(*value)) return bound[0] ? *bound[0] : Value::Integer(0);
  if (std::isinf(*value)) Fail("cannot convert float infinity to integer");
  if (std::fabs(*value) > 1e36) Fail("integer too large");
  return Value::Integer(static_cast<Int>(*value));
}

Value FloatFilter(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("float", arguments, {"default"});
  if (auto value = ToFloat(context, input)) return Value::Float(*value);
  return bound[0] ? *bound[0] : Value::Float(0);
}

Value Abs(Context&, const Value& input, const Arguments& arguments) {
  const Bound none("abs", arguments, {});
  RequireDefined(input);
  if (!input.IsNumber()) Fail("bad operand type for abs(): '{}'", TypeName(input));
  if (input.IsFloat()) return Value::Float(std::fabs(input.floating()));
  return Value::Integer(input.integer() < 0 ? -input.integer() : input.integer());
}

Value Round(Context&, const Value& input, const Arguments& arguments) {
  Bound bound("round", arguments, {"precision", "method"});
  std::string method = bound.TextOr(1, "common").str();
  if (method != "common" && method != "ceil" && method != "floor") {
    Fail("method must be common, ceil or floor");
  }
  RequireDefined(input);
  if (!input.IsNumber()) Fail("type {} doesn't define __round__ method", TypeName(input));
  Int precision = std::clamp<Int>(bound.IntegerOr(0, 0), -400, 400);
  auto digits = static_cast<int>(precision);
  if (method == "common") {
    if (!input.IsFloat() && digits >= 0) return Value::Integer(input.integer());
    double rounded = RoundHalfEven(input.AsDouble(), digits);
    return input.IsFloat() ? Value::Float(rounded) : Value::Integer(static_cast<Int>(rounded));
  }
  double scale = std::pow(10.0, digits);
  double scaled = input.AsDouble() * scale;
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

JsonStyle StyleOf(Context& context, const Bound& bound) {
  constexpr Int kMaxIndent = 64;
  JsonStyle style;
  style.ensure_ascii = bound.TruthOr(0, false);
  if (bound[1] && bound[1]->IsString()) {
    style.indent = bound[1]->text().str();
  } else if (bound[1] && !bound[1]->IsNone()) {
    Int width = std::clamp<Int>(bound.IntegerOr(1, 0), 0, kMaxIndent + 1);
    style.indent = std::string(static_cast<size_t>(width), ' ');
  }
  if (style.indent && style.indent->size() > kMaxIndent) Fail("indent too wide");
  if (bound[2] && !bound[2]->IsNone()) {
    ListPtr pair = Iterate(context, *bound[2]);
    if (pair->items.size() != 2 || !pair->items[0].IsString() || !pair->items[1].IsString()) {
      Fail("separators must be a pair of strings");
    }
    style.item_separator = pair->items[0].text().str();
    style.key_separator = pair->items[1].text().str();
  } else if (style.indent) {
    style.item_separator.pop_back();  // no space before a line break
  }
  style.sort_keys = bound.TruthOr(3, false);
  return style;
}

Value ToJsonFilter(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  return context.Make(ToJson(context, input, StyleOf(context, bound)));
}

// The filter `attr`, which looks up attributes but not items.
Value Attr(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("attr", arguments, {"name"}, 1);
  std::string name = Str(context, *bound[0]).str();
  auto found = input.IsObject() ? input.object()->GetAttribute(context, name)
                                : FindMethod(context, input, name);
  if (found) return *found;
  return Value::MakeUndefined(fmt::format("{} has no attribute {}",
                                          QuotedString(ObjectTypeName(input)), QuotedString(name)));
}

}  // namespace

Filter FindValueFilter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> filters = {
      {"default", Default}, {"d", Default},   {"int", IntFilter},       {"float", FloatFilter},
      {"abs", Abs},         {"round", Round}, {"tojson", ToJsonFilter}, {"attr", Attr},
  };
  auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace switchyard::jinja
