#include <algorithm>
#include <cmath>

#include "text/jinja/exact_json.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/utf8.h"

namespace switchyard::jinja {
namespace {

using Json = nlohmann::ordered_json;

Value StringFromJson(Context& context, const std::string& text, bool trusted) {
  if (!IsValidUtf8(text)) Fail("a string is not valid UTF-8");
  return context.Make(text, trusted);
}

Value Convert(Context& context, const Json& json, bool trusted, int depth) {
  if (depth > kMaxNesting) Fail("the request is nested deeper than {} levels", kMaxNesting);
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::Integer(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      return Value::Integer(json.get<uint64_t>());
    case Json::value_t::number_float:
      return Value::Float(json.get<double>());
    case Json::value_t::string:
      return StringFromJson(context, json.get_ref<const std::string&>(), trusted);
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(Convert(context, item, trusted, depth + 1));
      return context.MakeList(std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, value] : json.items()) {
        dict.Append(StringFromJson(context, key, trusted),
                    Convert(context, value, trusted, depth + 1));
      }
      return context.MakeDict(std::move(dict));
    }
    case Json::value_t::binary:
      if (auto text = TrustedStringOf(json)) return StringFromJson(context, *text, true);
      if (auto digits = BigIntegerOf(json)) return Value::IntegerFromDigits(*digits);
      Fail("the request has a value that JSON cannot represent");
    default:
      return {};
  }
}

class Writer {
 public:
  Writer(Context& context, const JsonStyle& style) : context_(context), style_(style) {}

  void Write(const Value& value) {
    context_.Step();
    if (value.IsString()) {
      WriteString(value.text());
    } else if (value.IsList() && (value.list().kind == List::Kind::kList ||
                                  value.list().kind == List::Kind::kTuple)) {
      WriteList(value.list());
    } else if (value.IsDict()) {
      WriteDict(value.dict());
    } else {
      out_ += Scalar(value);
    }
  }

  Text Take() && {
    context_.Allocate(out_.size());
    return Text(std::move(out_), trusted_);
  }

 private:
  static std::string Scalar(const Value& value) {
    if (value.IsNone()) return "null";
    if (value.IsBool()) return value.boolean() ? "true" : "false";
    if (value.IsInteger()) return IntegerString(value.integer());
    if (value.IsBigInteger()) return value.big_integer();
    if (!value.IsFloat()) Fail("Object of type {} is not JSON serializable", TypeName(value));
    double number = value.floating();
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
    return FloatString(number);
  }

  void WriteList(const List& list) {
    out_ += '[';
    ++level_;
    for (size_t i = 0; i < list.items.size(); ++i) {
      Separate(i == 0);
      Write(list.items[i]);
    }
    Close(list.items.empty(), ']');
  }

  void WriteDict(const Dict& dict) {
    std::vector<const Dict::Entry*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [this](const auto* a, const auto* b) {
        return Less(context_, a->first, b->first);
      });
    }
    out_ += '{';
    ++level_;
    for (size_t i = 0; i < entries.size(); ++i) {
      Separate(i == 0);
      WriteKey(entries[i]->first);
      out_ += style_.key_separator;
      Write(entries[i]->second);
    }
    Close(entries.empty(), '}');
  }

  void WriteKey(const Value& key) {
    if (key.IsString()) {
      WriteString(key.text());
    } else if (key.IsNumber() || key.IsNone() || key.IsBigInteger()) {
      out_ += '"' + Scalar(key) + '"';
    } else {
      Fail("keys must be str, int, float, bool or None, not {}", TypeName(key));
    }
  }

  void Separate(bool first) {
    if (!first) out_ += style_.item_separator;
    NewLine();
    Charge();
  }

  void Close(bool empty, char bracket) {
    --level_;
    if (!empty) NewLine();
    out_ += bracket;
  }

  void NewLine() {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += *style_.indent;
  }

  void WriteString(const Text& text) {
    context_.Scan(2 * text.size());
    trusted_ = trusted_ && text.trusted();
    const std::string& bytes = text.str();
    out_ += '"';
    for (size_t at = 0; at < bytes.size();) {
      size_t begin = at;
      char32_t c = NextCharacter(bytes, &at);
      static constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
      static constexpr std::string_view kLetters = "\"\\nrtfb";
      size_t letter = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : std::string_view::npos;
      if (letter != std::string_view::npos) {
        out_ += {'\\', kLetters[letter]};
      } else if (c < 0x20 || (style_.ensure_ascii && c > 0x7E)) {
        WriteEscape(c);
      } else {
        out_.append(bytes, begin, at - begin);
      }
    }
    out_ += '"';
    Charge();
  }

  void WriteEscape(char32_t c) {
    auto code = static_cast<uint32_t>(c);
    if (code >= 0x10000) {  // a surrogate pair
      code -= 0x10000;
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF));
    } else {
      out_ += fmt::format("\\u{:04x}", code);
    }
  }

  // Charges unfinished output to the budget: separators and indents can be of any length.
  void Charge() {
    context_.Allocate(out_.size() - charged_);
    charged_ = out_.size();
  }

  Context& context_;
  const JsonStyle& style_;
  std::string out_;
  size_t charged_ = 0;
  int level_ = 0;
  bool trusted_ = true;
};

}  // namespace

Value FromJson(Context& context, const Json& json, bool trusted) {
  return Convert(context, json, trusted, 0);
}

Text ToJson(Context& context, const Value& value, const JsonStyle& style) {
  Writer writer(context, style);
  writer.Write(value);
  return std::move(writer).Take();
}

}  // namespace switchyard::jinja
