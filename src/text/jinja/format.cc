#include <algorithm>
#include <cmath>

#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/utf8.h"

namespace switchyard::jinja {
namespace {

constexpr int kMaxPrecision = 400;

// Reads a format string; offsets are bytes.
class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  bool Done() const { return at_ >= text_.size(); }
  size_t at() const { return at_; }
  char Peek() const { return Done() ? '\0' : text_[at_]; }
  char Next() {
    if (Done()) Fail("incomplete format");
    return text_[at_++];
  }
  bool Skip(char c) { return Peek() == c && !Done() && (++at_, true); }
  bool IsDigit() const { return Peek() >= '0' && Peek() <= '9'; }

  int Number() {
    int value = 0;
    while (IsDigit()) {
      value = value * 10 + (Next() - '0');
      if (value > 1'000'000) Fail("Too many decimal digits in format string");
    }
    return value;
  }

  std::string Until(std::string_view stops) {
    size_t end = std::min(text_.find_first_of(stops, at_), text_.size());
    std::string out = text_.substr(at_, end - at_);
    at_ = end;
    return out;
  }

 private:
  const std::string& text_;
  size_t at_ = 0;
};

// The part of a format specification between `%` or `:` and the type.
struct Spec {
  std::string fill = " ";
  char align = '\0';  // '\0': the default of the type
  char sign = '-';
  bool alternate = false;
  bool zero = false;
  char grouping = '\0';
  int width = 0;
  int precision = -1;  // -1: omitted
  char type = '\0';
};

std::string Digits(Int value, char type) {
  auto magnitude = static_cast<unsigned __int128>(value < 0 ? -value : value);
  switch (type) {
    case 'x':
      return fmt::format("{:x}", magnitude);
    case 'X':
      return fmt::format("{:X}", magnitude);
    case 'o':
      return fmt::format("{:o}", magnitude);
    case 'b':
      return fmt::format("{:b}", magnitude);
    default:
      return fmt::format("{}", magnitude);
  }
}

std::string Digits(double value, char type, int precision) {
  double magnitude = std::fabs(value);
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return "inf";
  if (type == '\0' && precision < 0) return FloatString(magnitude);
  if (precision < 0) precision = 6;
  switch (type) {
    case 'e':
      return fmt::format("{:.{}e}", magnitude, precision);
    case 'E':
      return fmt::format("{:.{}E}", magnitude, precision);
    case 'f':
    case 'F':
      return fmt::format("{:.{}f}", magnitude, precision);
    case '%':
      return fmt::format("{:.{}f}%", magnitude * 100, precision);
    case 'G':
      return fmt::format("{:.{}G}", magnitude, precision);
    default:
      return fmt::format("{:.{}g}", magnitude, precision);
  }
}

// Inserts separators between groups of three digits before the decimal point.
void Group(std::string& digits, char separator) {
  size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t i = end; i > 3; i -= 3) digits.insert(i - 3, 1, separator);
}

std::string FormatNumber(const Value& value, const Spec& spec) {
  static constexpr std::string_view kIntegerTypes = "diuxXobn";
  bool as_integer = (spec.type == '\0' && !value.IsFloat()) ||
                    (spec.type != '\0' && kIntegerTypes.find(spec.type) != std::string_view::npos);
  bool negative = value.IsFloat() ? std::signbit(value.floating()) : value.integer() < 0;
  std::string digits = as_integer ? Digits(value.integer(), spec.type)
                                  : Digits(value.AsDouble(), spec.type, spec.precision);
  if (as_integer && spec.precision > static_cast<int>(digits.size())) {
    digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
  }
  if (spec.grouping) Group(digits, spec.grouping);
  std::string prefix = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  bool has_base = spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b';
  if (spec.alternate && as_integer && has_base) prefix += {'0', spec.type};
  size_t length = prefix.size() + digits.size();
  if (spec.zero && static_cast<size_t>(spec.width) > length) {
    digits.insert(0, static_cast<size_t>(spec.width) - length, '0');
  }
  return prefix + digits;
}

Text FormatText(Context& context, const Text& text, const Spec& spec) {
  Text out = text;
  if (spec.precision >= 0) {
    out = text.Sub(0, OffsetOfCodePoint(text.str(), static_cast<size_t>(spec.precision)));
  }
  return Pad(context, out, spec.width, spec.fill, spec.align ? spec.align : '<');
}

void CheckPrecision(const Spec& spec) {
  if (spec.precision > kMaxPrecision) Fail("precision too big");
}

// ---- %

class PercentFormatter {
 public:
  PercentFormatter(Context& context, const Text& format, const Value& arguments)
      : context_(context), format_(format), arguments_(arguments), in_(format.str()) {}

  Text Run() {
    while (!in_.Done()) {
      size_t begin = in_.at();
      in_.Until("%");
      out_.Append(format_, begin, in_.at());
      if (in_.Skip('%')) Field();
    }
    bool all_used = arguments_.IsDict() || used_ == Count();
    if (!all_used) Fail("not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  bool IsTuple() const {
    return arguments_.IsList() && arguments_.list().kind == List::Kind::kTuple;
  }
  size_t Count() const { return IsTuple() ? arguments_.list().items.size() : 1; }

  const Value& NextArgument() {
    if (used_ >= Count()) Fail("not enough arguments for format string");
    return IsTuple() ? arguments_.list().items[used_++] : (++used_, arguments_);
  }

  const Value* NamedArgument() {
    if (!in_.Skip('(')) return nullptr;
    if (!arguments_.IsDict()) Fail("format requires a mapping");
    std::string key = in_.Until(")");
    in_.Next();
    const Value* value = arguments_.dict().Find(key);
    if (!value) Fail("{}", QuotedString(key));
    return value;
  }

  int NumberOrStar() {
    if (!in_.Skip('*')) return in_.Number();
    const Value& value = NextArgument();
    if (!value.IsInteger()) Fail("* wants int");
    return static_cast<int>(std::clamp<Int>(value.integer(), -1'000'000, 1'000'000));
  }

  void Field() {
    context_.Step();
    const Value* named = NamedArgument();
    Spec spec;
    spec.align = '>';
    bool left = false;
    for (bool more = true; more;) {
      if (in_.Skip('-')) {
        left = true;
      } else if (in_.Skip('+')) {
        spec.sign = '+';
      } else if (in_.Skip(' ')) {
        spec.sign = spec.sign == '+' ? '+' : ' ';
      } else if (in_.Skip('0')) {
        spec.zero = true;
      } else if (in_.Skip('#')) {
        spec.alternate = true;
      } else {
        more = false;
      }
    }
    spec.width = NumberOrStar();
    if (spec.width < 0) {
      left = true;
      spec.width = -spec.width;
    }
    if (left) spec.align = '<';
    spec.zero = spec.zero && !left;
    if (in_.Skip('.')) spec.precision = std::max(0, NumberOrStar());
    while (in_.Skip('l') || in_.Skip('h') || in_.Skip('L')) {
    }
    spec.type = in_.Next();
    if (spec.type == '%') {
      out_.Append("%", format_.trusted());
      return;
    }
    Convert(named ? *named : NextArgument(), spec);
  }

  void Convert(const Value& value, Spec spec) {
    CheckPrecision(spec);
    static constexpr std::string_view kNumberTypes = "diuxXoeEfFgG";
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
      Text text = spec.type == 's' ? Str(context_, value) : Repr(context_, value);
      out_.Append(FormatText(context_, text, spec));
    } else if (spec.type == 'c' && value.IsString()) {
      out_.Append(FormatText(context_, value.text(), spec));
    } else if (kNumberTypes.find(spec.type) != std::string_view::npos) {
      ConvertNumber(value, spec);
    } else {
      Fail("unsupported format character '{}' at index {}", spec.type, in_.at() - 1);
    }
  }

  void ConvertNumber(Value value, const Spec& spec) {
    bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    bool integral = decimal || spec.type == 'x' || spec.type == 'X' || spec.type == 'o';
    if (!value.IsNumber() || (integral && !decimal && value.IsFloat())) {
      RequireDefined(value);
      if (!integral) Fail("must be real number, not {}", TypeName(value));
      Fail("%{} format: {} is required, not {}", spec.type,
           decimal ? "a real number" : "an integer", TypeName(value));
    }
    if (integral && value.IsFloat()) {
      if (!(std::fabs(value.floating()) < 1e36)) Fail("cannot convert float to integer");
      value = Value::Integer(static_cast<Int>(value.floating()));
    }
    out_.Append(Pad(context_, Text(FormatNumber(value, spec), true), spec.width, " ", spec.align));
  }

  Context& context_;
  const Text& format_;
  const Value& arguments_;
  Reader in_;
  size_t used_ = 0;
  Text out_;
};

// ---- str.format

Spec ParseSpec(const std::string& text) {
  Spec spec;
  static constexpr std::string_view kAligns = "<>^=";
  size_t fill_end = OffsetOfCodePoint(text, 1);
  Reader in(text);
  if (fill_end < text.size() && kAligns.find(text[fill_end]) != std::string_view::npos) {
    spec.fill = text.substr(0, fill_end);
    for (size_t i = 0; i < fill_end; ++i) in.Next();
    spec.align = in.Next();
  } else if (!in.Done() && kAligns.find(in.Peek()) != std::string_view::npos) {
    spec.align = in.Next();
  }
  if (in.Peek() == '+' || in.Peek() == '-' || in.Peek() == ' ')
    spec.sign = in.Done() ? '-' : in.Next();
  spec.alternate = in.Skip('#');
  spec.zero = in.Skip('0') && !spec.align;
  if (spec.align == '=') {
    spec.zero = spec.fill == "0";
    spec.align = '>';
  }
  spec.width = in.Number();
  if (in.Peek() == ',' || in.Peek() == '_') spec.grouping = in.Next();
  if (in.Skip('.')) spec.precision = in.Number();
  if (!in.Done()) spec.type = in.Next();
  if (!in.Done()) Fail("Invalid format specifier");
  CheckPrecision(spec);
  return spec;
}

class BraceFormatter {
 public:
  BraceFormatter(Context& context, const Text& format, const Arguments& arguments)
      : context_(context), format_(format), arguments_(arguments), in_(format.str()) {}

  Text Run() {
    while (!in_.Done()) {
      size_t begin = in_.at();
      in_.Until("{}");
      out_.Append(format_, begin, in_.at());
      if (in_.Done()) break;
      begin = in_.at();
      char brace = in_.Next();
      if (in_.Skip(brace)) {
        out_.Append(format_, begin, begin + 1);
      } else if (brace == '}') {
        Fail("Single '}}' encountered in format string");
      } else {
        Field();
      }
    }
    return std::move(out_);
  }

 private:
  void Field() {
    context_.Step();
    Value value = Argument(in_.Until(".[!:}"));
    while (in_.Peek() == '.' || in_.Peek() == '[') {
      if (in_.Next() == '.') {
        value = GetAttribute(context_, value, in_.Until(".[!:}"));
      } else {
        value = GetItem(context_, value, Key(in_.Until("]")));
        in_.Next();
      }
    }
    if (in_.Skip('!')) {
      bool repr = in_.Next() == 'r';
      value = context_.Make(repr ? Repr(context_, value) : Str(context_, value));
    }
    std::string spec = in_.Skip(':') ? in_.Until("{}") : "";
    if (in_.Peek() == '{') Fail("nested fields in a format are not supported");
    if (!in_.Skip('}')) Fail("expected '}}' before end of string");
    Append(value, ParseSpec(spec));
  }

  Value Key(const std::string& text) {
    bool number = !text.empty() && text.size() < 9 &&
                  text.find_first_not_of("0123456789") == std::string::npos;
    return number ? Value::Integer(std::stoi(text)) : context_.Make(text, true);
  }

  const Value& Argument(const std::string& name) {
    Value key = Key(name);
    if (name.empty() || key.IsInteger()) {
      auto index = name.empty() ? automatic_++ : static_cast<size_t>(key.integer());
      if (index >= arguments_.positional.size()) {
        Fail("tuple index out of range");
      }
      return arguments_.positional[index];
    }
    auto found = std::find_if(arguments_.named.begin(), arguments_.named.end(),
                              [&](const auto& argument) { return argument.first == name; });
    if (found == arguments_.named.end()) Fail("{}", QuotedString(name));
    return found->second;
  }

  void Append(const Value& value, const Spec& spec) {
    bool as_text = !value.IsNumber() || (value.IsBool() && spec.type == '\0') || spec.type == 's';
    if (as_text) {
      if (spec.type != '\0' && spec.type != 's') {
        Fail("Unknown format code '{}' for object of type '{}'", spec.type, TypeName(value));
      }
      out_.Append(FormatText(context_, Str(context_, value), spec));
      return;
    }
    static constexpr std::string_view kTypes = "bdnxXoeEfFgG%";
    static constexpr std::string_view kIntegerOnly = "bdxXo";
    bool known = spec.type == '\0' || kTypes.find(spec.type) != std::string_view::npos;
    bool fits = !value.IsFloat() || spec.type == '\0' ||
                kIntegerOnly.find(spec.type) == std::string_view::npos;
    if (!known || !fits)
      Fail("Unknown format code '{}' for object of type '{}'", spec.type, TypeName(value));
    Spec number = spec;
    if (value.IsFloat() && number.type == 'n') number.type = 'g';
    context_.Allocate(static_cast<size_t>(spec.width));
    char align = spec.align ? spec.align : '>';
    out_.Append(
        Pad(context_, Text(FormatNumber(value, number), true), spec.width, spec.fill, align));
  }

  Context& context_;
  const Text& format_;
  const Arguments& arguments_;
  Reader in_;
  size_t automatic_ = 0;
  Text out_;
};

}  // namespace

Text PercentFormat(Context& context, const Text& format, const Value& arguments) {
  return PercentFormatter(context, format, arguments).Run();
}

Text BraceFormat(Context& context, const Text& format, const Arguments& arguments) {
  return BraceFormatter(context, format, arguments).Run();
}

Text EscapeHtml(const Text& text) {
  Text out;
  text.ForEachRun([&](size_t begin, size_t end, bool trusted) {
    for (size_t i = begin; i < end; ++i) {
      switch (text.str()[i]) {
        case '&':
          out.Append("&amp;", trusted);
          break;
        case '<':
          out.Append("&lt;", trusted);
          break;
        case '>':
          out.Append("&gt;", trusted);
          break;
        case '\'':
          out.Append("&#39;", trusted);
          break;
        case '"':
          out.Append("&#34;", trusted);
          break;
        default:
          out.Append(std::string_view(text.str()).substr(i, 1), trusted);
      }
    }
  });
  out.set_markup(true);
  return out;
}

Text Pad(Context& context, const Text& text, Int width, std::string_view fill, char align) {
  context.Scan(text.size());
  auto length = static_cast<Int>(CountCodePoints(text.str()));
  if (width <= length) return text;
  if (width > (Int{1} << 40)) Fail("width too big");
  auto missing = static_cast<size_t>(width - length);
  context.Allocate(missing * fill.size());
  size_t left = align == '<' ? 0 : align == '>' ? missing : missing / 2;
  if (align == 'c') left += missing & static_cast<size_t>(width) & 1;
  Text out;
  for (size_t i = 0; i < left; ++i) out.Append(fill, true);
  out.Append(text);
  for (size_t i = left; i < missing; ++i) out.Append(fill, true);
  return out;
}

}  // namespace switchyard::jinja
