#include <algorithm>
#include <string>
#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/utf8.h"

namespace switchyard::jinja {
namespace {

constexpr size_t kNone = std::string::npos;

// The argument `index`; nullopt if it is missing or None, which strip and split treat alike.
std::optional<Text> OptionalText(const Bound& bound, size_t index) {
  if (!bound[index] || bound[index]->IsNone()) return std::nullopt;
  return bound.TextOr(index, "");
}

Value MakeTexts(Context& context, std::vector<Text> texts, List::Kind kind = List::Kind::kList) {
  std::vector<Value> items;
  items.reserve(texts.size());
  for (Text& text : texts) items.push_back(context.Make(std::move(text)));
  return context.MakeList(std::move(items), kind);
}

template <bool left, bool right>
Value StripMethod(Context& context, const Value& self, const Arguments& arguments) {
  Bound bound("strip", arguments, {"chars"});
  return context.Make(Strip(context, self.text(), OptionalText(bound, 0), left, right));
}

template <bool from_right>
Value SplitMethod(Context& context, const Value& self, const Arguments& arguments) {
  Bound bound("split", arguments, {"sep", "maxsplit"});
  return MakeTexts(context, Split(context, self.text(), OptionalText(bound, 0),
                                  bound.IntegerOr(1, -1), from_right));
}

Value SplitLinesMethod(Context& context, const Value& self, const Arguments& arguments) {
  Bound bound("splitlines", arguments, {"keepends"});
  return MakeTexts(context, SplitLines(context, self.text(), bound.TruthOr(0, false)));
}

template <bool from_right>
Value PartitionMethod(Context& context, const Value& self, const Arguments& arguments) {
  Bound bound("partition", arguments, {"sep"}, 1);
  const Text& text = self.text();
  Text separator = bound.TextOr(0, "");
  if (separator.empty()) Fail("empty separator");
  size_t at = from_right ? RFindBytes(context, text.str(), separator.str())
                         : FindBytes(context, text.str(), separator.str());
  if (at == kNone) {
    std::vector<Text> whole =
        from_right ? std::vector<Text>{{}, {}, text} : std::vector<Text>{text, {}, {}};
    return MakeTexts(context, std::move(whole), List::Kind::kTuple);
  }
  size_t end = at + separator.size();
  return MakeTexts(context, {text.Sub(0, at), text.Sub(at, end), text.Sub(end, text.size())},
                   List::Kind::kTuple);
}

template <Text (*map)(Context&, const Text&)>
Value MapMethod(Context& context, const Value& self, const Arguments& arguments) {
  Bound("case mapping", arguments, {});
  return context.Make(map(context, self.text()));
}

// str.title: letters at the start or after a non-letter become upper case, all others lower case.
Text Title(Context& context, const Text& text) {
  context.Scan(16 * text.size());
  std::string_view bytes = text.str();
  Text out;
  bool in_word = false;
  for (size_t at = 0; at < bytes.size();) {
    size_t begin = at;
    bool letter = IsInClass(NextCharacter(bytes, &at), CharClass::kLetter);
    Text one = text.Sub(begin, at);
    out.Append(!letter ? one : in_word ? Lower(context, one) : Upper(context, one));
    in_word = letter;
  }
  return out;
}

Text SwapCase(Context& context, const Text& text) {
  context.Scan(16 * text.size());
  std::string_view bytes = text.str();
  Text out;
  for (size_t at = 0; at < bytes.size();) {
    size_t begin = at;
    bool upper = IsInClass(NextCharacter(bytes, &at), CharClass::kUpper);
    Text one = text.Sub(begin, at);
    out.Append(upper ? Lower(context, one) : Upper(context, one));
  }
  return out;
}

// Byte range of the code points [start, end) of a text, where start and end are arguments of find,
// count or startswith.
struct ByteRange {
  size_t begin, end;
  size_t first;  // code points before begin
  bool valid;    // start <= end, and both lie within the text
};

ByteRange RangeOf(Context& context, const Text& text, const Bound& bound, size_t start_index) {
  context.Scan(2 * text.size());
  auto length = static_cast<Int>(CountCodePoints(text.str()));
  auto bound_or = [&](size_t index, Int otherwise) {
    bool given = bound[index] && !bound[index]->IsNone();
    Int value = given ? bound.IntegerOr(index, 0) : otherwise;
    return value < 0 ? std::max<Int>(value + length, 0) : value;
  };
  Int start = bound_or(start_index, 0);
  Int end = std::min(bound_or(start_index + 1, length), length);
  if (start > end) return {0, 0, 0, false};
  auto first = static_cast<size_t>(start);
  size_t begin = OffsetOfCodePoint(text.str(), first);
  return {begin, OffsetOfCodePoint(text.str(), static_cast<size_t>(end - start), begin), first,
          true};
}

template <bool from_right, bool raises>
Value FindMethodOf(Context& context, const Value& self, const Arguments& arguments) {
  Bound bound("find", arguments, {"sub", "start", "end"}, 1);
  const Text& text = self.text();
  Text needle = bound.TextOr(0, "");
  ByteRange range = RangeOf(context, text, bound, 1);
  std::string_view part = std::string_view(text.str()).substr(range.begin, range.end - range.begin);
  size_t at = kNone;
  if (range.valid) {
    at = from_right ? RFindBytes(context, part, needle.str())
                    : FindBytes(context, part, needle.str());
  }
  if (at == kNone && raises) Fail("substring not found");
  if (at == kNone) return Value::Integer(-1);
  return Value::Integer(static_cast<Int>(range.first + CountCodePoints(part.substr(0, at))));
}

Value CountMethod(Context& context, const Value& self, const Arguments& arguments) {
  Bound bound("count", arguments, {"sub", "start", "end"}, 1);
  const Text& text = self.text();
  Text needle = bound.TextOr(0, "");
  ByteRange range = RangeOf(context, text, bound, 1);
  if (!range.valid) return Value::Integer(0);
  std::string_view part = std::string_view(text.str()).substr(range.begin, range.end - range.begin);
  if (needle.empty()) return Value::Integer(static_cast<Int>(CountCodePoints(part) + 1));
  Int count = 0;
  for (size_t at = 0; (at = FindBytes(context, part, needle.str(), at)) != kNone;
       at += needle.size())
    ++count;
  return Value::Integer(count);
}

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool EndsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

// startswith and endswith: `matches` one string or any of a tuple.
template <bool (*matches)(std::string_view, std::string_view)>
Value AffixMethod(Context& context, const Value& self, const Arguments& arguments) {
  std::string_view name = matches == StartsWith ? "startswith" : "endswith";
  Bound bound(name, arguments, {"affix", "start", "end"}, 1);
  ByteRange range = RangeOf(context, self.text(), bound, 1);
  std::string_view part =
      std::string_view(self.text().str()).substr(range.begin, range.end - range.begin);
  auto matches_one = [&](const Value& affix) {
    if (!affix.IsString()) {
      Fail("{} first arg must be str or a tuple of str, not {}", name, TypeName(affix));
    }
    return range.valid && matches(part, affix.text().str());
  };
  const Value& affix = *bound[0];
  if (!affix.IsList() || affix.list().kind != List::Kind::kTuple)
    return Value::Bool(matches_one(affix));
  const auto& items = affix.list().items;
  context.Step(items.size());
  return Value::Bool(std::any_of(items.begin(), items.end(), matches_one));
}

Value RemovePrefix(Context& context, const Value& self, const Arguments& arguments) {
  Text prefix = Bound("removeprefix", arguments, {"prefix"}, 1).TextOr(0, "");
  const Text& text = self.text();
  if (!StartsWith(text.str(), prefix.str())) return self;
  return context.Make(text.Sub(prefix.size(), text.size()));
}

Value RemoveSuffix(Context& context, const Value& self, const Arguments& arguments) {
  Text suffix = Bound("removesuffix", arguments, {"suffix"}, 1).TextOr(0, "");
  const Text& text = self.text();
  if (!EndsWith(text.str(), suffix.str())) return self;
  return context.Make(text.Sub(0, text.size() - suffix.size()));
}

Value ReplaceMethod(Context& context, const Value& self, const Arguments& arguments) {
  Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  return context.Make(Replace(context, self.text(), bound.TextOr(0, ""), bound.TextOr(1, ""),
                              bound.IntegerOr(2, -1)));
}

Value JoinMethod(Context& context, const Value& self, const Arguments& arguments) {
  Bound bound("join", arguments, {"iterable"}, 1);
  ListPtr list = Iterate(context, *bound[0]);
  Text out;
  for (size_t i = 0; i < list->items.size(); ++i) {
    const Value& item = list->items[i];
    if (!item.IsString())
      Fail("sequence item {}: expected str instance, {} found", i, TypeName(item));
    context.Allocate(item.text().size() + self.text().size());
    context.Step();
    if (i) out.Append(self.text());
    out.Append(item.text());
  }
  return context.Make(std::move(out));
}

Value FormatMethod(Context& context, const Value& self, const Arguments& arguments) {
  return context.Make(BraceFormat(context, self.text(), arguments));
}

template <char align>
Value PadMethod(Context& context, const Value& self, const Arguments& arguments) {
  Bound bound("padding", arguments, {"width", "fillchar"}, 1);
  Text fill = bound.TextOr(1, " ");
  if (CountCodePoints(fill.str()) != 1)
    Fail("The fill character must be exactly one character long");
  return context.Make(Pad(context, self.text(), bound.IntegerOr(0, 0), fill.str(), align));
}

Value ZFill(Context& context, const Value& self, const Arguments& arguments) {
  Bound bound("zfill", arguments, {"width"}, 1);
  const Text& text = self.text();
  bool sign = !text.empty() && (text.str()[0] == '-' || text.str()[0] == '+');
  Text out = text.Sub(0, sign ? 1 : 0);
  Int width = bound.IntegerOr(0, 0) - (sign ? 1 : 0);
  out.Append(Pad(context, text.Sub(sign ? 1 : 0, text.size()), width, "0", '>'));
  return context.Make(std::move(out));
}

// str.isX: true if the text is not empty and every character is in one of the classes.
template <CharClass... classes>
Value IsMethod(Context& context, const Value& self, const Arguments& arguments) {
  Bound("character test", arguments, {});
  std::string_view bytes = self.text().str();
  context.Scan(16 * bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    char32_t c = NextCharacter(bytes, &at);
    if (!(IsInClass(c, classes) || ...)) return Value::Bool(false);
  }
  return Value::Bool(!bytes.empty());
}

// str.isupper and islower: true if there are cased characters, and all have the wanted case.
template <CharClass wanted, CharClass other>
Value CaseMethod(Context& context, const Value& self, const Arguments& arguments) {
  Bound("case test", arguments, {});
  std::string_view bytes = self.text().str();
  context.Scan(16 * bytes.size());
  bool found = false;
  for (size_t at = 0; at < bytes.size();) {
    char32_t c = NextCharacter(bytes, &at);
    if (IsInClass(c, other)) return Value::Bool(false);
    found = found || IsInClass(c, wanted);
  }
  return Value::Bool(found);
}

Value IsSpaceMethod(Context& context, const Value& self, const Arguments& arguments) {
  const Bound none("isspace", arguments, {});
  context.Scan(self.text().size());
  return Value::Bool(!self.text().empty() && SkipSpace(self.text().str()) == self.text().size());
}

Value IsAsciiMethod(Context& context, const Value& self, const Arguments& arguments) {
  const Bound none("isascii", arguments, {});
  context.Scan(self.text().size());
  const std::string& bytes = self.text().str();
  return Value::Bool(
      std::all_of(bytes.begin(), bytes.end(), [](char c) { return (c & 0x80) == 0; }));
}

}  // namespace

Method FindStringMethod(std::string_view name) {
  using enum CharClass;
  static const std::unordered_map<std::string_view, Method> methods = {
      {"strip", StripMethod<true, true>},
      {"lstrip", StripMethod<true, false>},
      {"rstrip", StripMethod<false, true>},
      {"split", SplitMethod<false>},
      {"rsplit", SplitMethod<true>},
      {"splitlines", SplitLinesMethod},
      {"partition", PartitionMethod<false>},
      {"rpartition", PartitionMethod<true>},
      {"upper", MapMethod<Upper>},
      {"lower", MapMethod<Lower>},
      {"casefold", MapMethod<Lower>},
      {"capitalize", MapMethod<Capitalize>},
      {"title", MapMethod<Title>},
      {"swapcase", MapMethod<SwapCase>},
      {"find", FindMethodOf<false, false>},
      {"rfind", FindMethodOf<true, false>},
      {"index", FindMethodOf<false, true>},
      {"rindex", FindMethodOf<true, true>},
      {"count", CountMethod},
      {"startswith", AffixMethod<StartsWith>},
      {"endswith", AffixMethod<EndsWith>},
      {"removeprefix", RemovePrefix},
      {"removesuffix", RemoveSuffix},
      {"replace", ReplaceMethod},
      {"join", JoinMethod},
      {"format", FormatMethod},
      {"ljust", PadMethod<'<'>},
      {"rjust", PadMethod<'>'>},
      {"center", PadMethod<'c'>},
      {"zfill", ZFill},
      {"isalpha", IsMethod<kLetter>},
      {"isdigit", IsMethod<kDecimal>},
      {"isdecimal", IsMethod<kDecimal>},
      {"isnumeric", IsMethod<kNumeric>},
      {"isalnum", IsMethod<kLetter, kNumeric>},
      {"isupper", CaseMethod<kUpper, kLower>},
      {"islower", CaseMethod<kLower, kUpper>},
      {"isspace", IsSpaceMethod},
      {"isascii", IsAsciiMethod},
  };
  auto found = methods.find(name);
  return found == methods.end() ? nullptr : found->second;
}

}  // namespace switchyard::jinja
