#include <fmt/format.h>

#include <string>
#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/utf8.h"

namespace switchyard::jinja {
namespace {

// Percent-encodes the text. In a query, spaces become + and slashes are encoded too.
Text UrlQuote(Context& context, const Text& text, bool query) {
  static constexpr std::string_view kPlain = "_.-~";
  context.Allocate(3 * text.size());
  Text out;
  text.ForEachRun([&](size_t begin, size_t end, bool trusted) {
    for (size_t i = begin; i < end; ++i) {
      const char c = text.str()[i];
      const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                         (c >= 'A' && c <= 'Z') || kPlain.find(c) != std::string_view::npos ||
                         (c == '/' && !query);
      if (plain || (c == ' ' && query)) {
        out.Append(plain ? std::string_view(&c, 1) : "+", trusted);
      } else {
        out.Append(fmt::format("%{:02X}", static_cast<unsigned char>(c)), trusted);
      }
    }
  });
  return out;
}

Value UrlEncode(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("urlencode", arguments, {});
  if (!input.IsDict() && !input.IsList())
    return context.Make(UrlQuote(context, Str(context, input), false));
  Text out;
  const auto append = [&](const Value& key, const Value& value) {
    if (!out.empty()) out.Append("&", true);
    out.Append(UrlQuote(context, Str(context, key), true));
    out.Append("=", true);
    out.Append(UrlQuote(context, Str(context, value), true));
  };
  if (input.IsDict()) {
    for (const auto& [key, value] : input.dict().entries()) append(key, value);
  } else {
    for (const Value& item : input.list().items) {
      ListPtr pair = Iterate(context, item);
      if (pair->items.size() != 2) Fail("urlencode requires pairs of keys and values");
      append(pair->items[0], pair->items[1]);
    }
  }
  return context.Make(std::move(out));
}

Value XmlAttr(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("xmlattr", arguments, {"autospace"});
  if (!input.IsDict()) Fail("'{}' object has no attribute 'items'", TypeName(input));
  Text out;
  for (const auto& [key, value] : input.dict().entries()) {
    if (value.IsNone() || value.IsUndefined()) continue;
    Text name = Str(context, key);
    if (name.str().find_first_of(" \t\n\r\f\v/>=") != std::string::npos)
      Fail("Invalid character in attribute name: {}", QuotedString(name.str()));
    Text text = Str(context, value);
    context.Allocate(6 * (name.size() + text.size()) + 4);
    if (!out.empty() || bound.TruthOr(0, true)) out.Append(" ", true);
    out.Append(EscapeHtml(name));
    out.Append("=\"", true);
    out.Append(text.markup() ? text : EscapeHtml(text));
    out.Append("\"", true);
  }
  out.set_markup(false);
  return context.Make(std::move(out));
}

// Returns the text without tags and comments.
Text WithoutTags(const Text& text) {
  const std::string& bytes = text.str();
  Text out;
  size_t done = 0;
  for (size_t start = bytes.find('<'); start != std::string::npos; start = bytes.find('<', done)) {
    const bool comment = bytes.compare(start, 4, "<!--") == 0;
    const size_t end = comment ? bytes.find("-->", start + 4) : bytes.find('>', start);
    if (end == std::string::npos) break;
    out.Append(text, done, start);
    done = end + (comment ? 3 : 1);
  }
  out.Append(text, done, bytes.size());
  return out;
}

// The character of the entity "&name;". `name` is one of the six names below, or a number such as
// #39 or #x27. Empty for others.
std::string CharacterOfEntity(std::string_view name) {
  static const std::unordered_map<std::string_view, std::string_view> names = {
      {"amp", "&"}, {"lt", "<"}, {"gt", ">"}, {"quot", "\""}, {"apos", "'"}, {"nbsp", "\u00a0"}};
  if (const auto found = names.find(name); found != names.end()) return std::string(found->second);
  if (!name.starts_with('#') || name.size() > 9) return {};
  const bool hex = name.size() > 1 && (name[1] == 'x' || name[1] == 'X');
  const std::string digits(name.substr(hex ? 2 : 1));
  const char* const known = hex ? "0123456789abcdefABCDEF" : "0123456789";
  if (digits.empty() || digits.find_first_not_of(known) != std::string::npos) return {};
  const auto code = static_cast<char32_t>(std::stoul(digits, nullptr, hex ? 16 : 10));
  std::string out;
  if (code != 0 && code < 0x110000 && (code < 0xD800 || code > 0xDFFF)) AppendUtf8(code, &out);
  return out;
}

Text Unescape(const Text& text) {
  const std::string& bytes = text.str();
  Text out;
  size_t done = 0;
  for (size_t at = bytes.find('&'); at != std::string::npos; at = bytes.find('&', at + 1)) {
    const size_t end = bytes.find(';', at);
    if (end == std::string::npos) break;
    const std::string character =
        CharacterOfEntity(std::string_view(bytes).substr(at + 1, end - at - 1));
    if (character.empty()) continue;
    out.Append(text, done, at);
    out.Append(character, text.Sub(at, end).trusted());
    done = end + 1;
    at = end;
  }
  out.Append(text, done, bytes.size());
  return out;
}

// Removes tags, collapses runs of white space to one space, then replaces entities by characters.
Value StripTags(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("striptags", arguments, {});
  const Text text = WithoutTags(Str(context, input));
  context.Scan(16 * text.size());
  Text out;
  for (size_t at = SkipSpace(text.str()); at < text.size();) {
    size_t end = at;
    for (size_t next = end; next < text.size();) {
      if (IsSpace(NextCharacter(text.str(), &next))) break;
      end = next;
    }
    if (!out.empty()) out.Append(" ", text.trusted());
    out.Append(text, at, end);
    at = SkipSpace(text.str(), end);
  }
  return context.Make(Unescape(out));
}

Value Escape(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("escape", arguments, {});
  Text text = Str(context, input);
  context.Scan(8 * text.size());
  return context.Make(text.markup() ? text : EscapeHtml(text));
}

Value ForceEscape(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("forceescape", arguments, {});
  Text text = Str(context, input);
  context.Scan(8 * text.size());
  return context.Make(EscapeHtml(text));
}

Value Safe(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("safe", arguments, {});
  Text text = Str(context, input);
  text.set_markup(true);
  return context.Make(std::move(text));
}

}  // namespace

Filter FindHtmlFilter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> filters = {
      {"escape", Escape},           {"e", Escape},
      {"forceescape", ForceEscape}, {"safe", Safe},
      {"urlencode", UrlEncode},     {"xmlattr", XmlAttr},
      {"striptags", StripTags},     {"urlize", Urlize},
  };
  auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace switchyard::jinja
