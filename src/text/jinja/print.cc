#include "text/jinja/print.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "text/jinja/utf8.h"

namespace switchyard::jinja {
namespace {

class Printer {
 public:
  explicit Printer(Context& context) : context_(context) {}

  void Print(const Value& value) {
    context_.Step();
    if (value.IsString()) {
      context_.Scan(value.text().size());
      Charge(value.text().size());
      trusted_ = trusted_ && value.text().trusted();
      out_ += QuotedString(value.text().str());
    } else if (value.IsList()) {
      PrintList(value.list());
    } else if (value.IsDict()) {
      PrintDict(value.dict());
    } else {
      out_ += PrintScalar(value);
    }
  }

  Text Take() && { return Text(std::move(out_), trusted_); }

 private:
  void PrintList(const List& list) {
    if (list.kind == List::Kind::kGenerator || list.kind == List::Kind::kRange) {
      out_ += list.label;
      return;
    }
    bool view = list.kind == List::Kind::kView;
    bool tuple = list.kind == List::Kind::kTuple;
    if (view) out_ += list.label + "(";
    out_ += tuple ? '(' : '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i) out_ += ", ";
      Print(list.items[i]);
    }
    if (tuple && list.items.size() == 1) out_ += ',';
    out_ += tuple ? ')' : ']';
    if (view) out_ += ')';
    Charge(2 * list.items.size());
  }

  void PrintDict(const Dict& dict) {
    out_ += '{';
    bool first = true;
    for (const auto& [key, value] : dict.entries()) {
      if (!std::exchange(first, false)) out_ += ", ";
      Print(key);
      out_ += ": ";
      Print(value);
    }
    out_ += '}';
    Charge(4 * dict.size());
  }

  static std::string PrintScalar(const Value& value) {
    if (value.IsUndefined()) return "Undefined";
    if (value.IsNone()) return "None";
    if (value.IsBool()) return value.boolean() ? "True" : "False";
    if (value.IsInteger()) return IntegerString(value.integer());
    if (value.IsBigInteger()) return value.big_integer();
    if (value.IsFloat()) return FloatString(value.floating());
    return value.object()->Repr();
  }

  void Charge(size_t bytes) { context_.Allocate(bytes); }

  Context& context_;
  std::string out_;
  bool trusted_ = true;
};

}  // namespace

Text Str(Context& context, const Value& value) {
  if (value.IsString()) return value.text();
  if (value.IsUndefined()) return {};
  return Repr(context, value);
}

Text Repr(Context& context, const Value& value) {
  Printer printer(context);
  printer.Print(value);
  return std::move(printer).Take();
}

std::string IntegerString(Int value) { return fmt::format("{}", value); }

std::string FloatString(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  auto [end, error] =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string text(buffer, end);  // d.ddde±xx
  size_t e = text.find('e');
  int exponent = std::stoi(text.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return text;
  // In this range, fixed notation with the shortest digits is the same as repr.
  auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  text.assign(buffer, fixed.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string QuotedString(std::string_view text) {
  bool has_single = text.find('\'') != std::string_view::npos;
  bool has_double = text.find('"') != std::string_view::npos;
  char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    size_t begin = at;
    char32_t c = NextCharacter(text, &at);
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c != ' ' && IsInClass(c, CharClass::kUnprintable)) {
      auto code = static_cast<uint32_t>(c);
      out += c < 0x100     ? fmt::format("\\x{:02x}", code)
             : c < 0x10000 ? fmt::format("\\u{:04x}", code)
                           : fmt::format("\\U{:08x}", code);
    } else {
      out += text.substr(begin, at - begin);
    }
  }
  out += quote;
  return out;
}

}  // namespace switchyard::jinja
