#include <string>
#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/utf8.h"

namespace switchyard::jinja {
namespace {

template <Text (*map)(Context&, const Text&)>
Value MapFilter(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("filter", arguments, {});
  return context.Make(map(context, Str(context, input)));
}

// Unlike in str.title, words begin only after white space, hyphens and opening brackets.
Text TitleWords(Context& context, const Text& text) {
  context.Scan(16 * text.size());
  std::string_view bytes = text.str();
  Text out;
  bool in_word = false;
  for (size_t at = 0; at < bytes.size();) {
    size_t begin = at;
    char32_t c = NextCharacter(bytes, &at);
    bool separator = IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    Text one = text.Sub(begin, at);
    out.Append(in_word ? Lower(context, one) : Upper(context, one));
    in_word = !separator;
  }
  return out;
}

Value Trim(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("trim", arguments, {"chars"});
  std::optional<Text> chars;
  if (bound[0] && !bound[0]->IsNone()) chars = bound.TextOr(0, "");
  return context.Make(Strip(context, Str(context, input), chars, true, true));
}

Value ReplaceFilter(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  Int count = bound[2] && !bound[2]->IsNone() ? bound.IntegerOr(2, -1) : -1;
  return context.Make(Replace(context, Str(context, input), Str(context, *bound[0]),
                              Str(context, *bound[1]), count));
}

Value Indent(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("indent", arguments, {"width", "first", "blank"});
  Text indent;
  if (bound[0] && bound[0]->IsString()) {
    indent = bound[0]->text();
  } else {
    indent = Pad(context, Text(), bound.IntegerOr(0, 4), " ", '<');
  }
  RequireDefined(input);
  if (!input.IsString())
    Fail("unsupported operand type(s) for +=: '{}' and 'str'", TypeName(input));
  bool first = bound.TruthOr(1, false);
  bool blank = bound.TruthOr(2, false);
  Text text = input.text();
  text.Append("\n", true);
  Text out;
  std::vector<Text> lines = SplitLines(context, text, false);
  for (size_t i = 0; i < lines.size(); ++i) {
    context.Allocate(indent.size() + lines[i].size() + 1);
    if (i) out.Append("\n", true);
    if (i == 0 ? first : blank || !lines[i].empty()) out.Append(indent);
    out.Append(lines[i]);
  }
  return context.Make(std::move(out));
}

Value Truncate(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("truncate", arguments, {"length", "killwords", "end", "leeway"});
  if (!input.IsString()) Fail("object of type '{}' has no len()", TypeName(input));
  const Text& text = input.text();
  Text end = bound.TextOr(2, "...");
  Int length = bound.IntegerOr(0, 255);
  Int leeway = bound[3] && !bound[3]->IsNone() ? bound.IntegerOr(3, 5) : 5;
  auto end_length = static_cast<Int>(CountCodePoints(end.str()));
  if (length < end_length) Fail("expected length >= {}, got {}", end_length, length);
  if (leeway < 0) Fail("expected leeway >= 0, got {}", leeway);
  context.Scan(2 * text.size());
  if (static_cast<Int>(CountCodePoints(text.str())) - leeway <= length) return input;
  Text out = text.Sub(0, OffsetOfCodePoint(text.str(), static_cast<size_t>(length - end_length)));
  if (!bound.TruthOr(1, false)) {
    size_t space = out.str().rfind(' ');
    if (space != std::string::npos) out = out.Sub(0, space);
  }
  out.Append(end);
  return context.Make(std::move(out));
}

Value Center(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("center", arguments, {"width"});
  return context.Make(Pad(context, Str(context, input), bound.IntegerOr(0, 80), " ", 'c'));
}

Value WordCount(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("wordcount", arguments, {});
  Text text = Str(context, input);
  context.Scan(16 * text.size());
  Int count = 0;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    char32_t c = NextCharacter(text.str(), &at);
    bool word = c == '_' || IsInClass(c, CharClass::kLetter) || IsInClass(c, CharClass::kNumeric);
    count += word && !in_word;
    in_word = word;
  }
  return Value::Integer(count);
}

Value String(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("string", arguments, {});
  return input.IsString() ? input : context.Make(Str(context, input));
}

Value Format(Context& context, const Value& input, const Arguments& arguments) {
  if (!arguments.named.empty() && !arguments.positional.empty()) {
    Fail("can't handle positional and keyword arguments at the same time");
  }
  Text format = Str(context, input);
  if (arguments.named.empty()) {
    Value tuple = context.MakeList(arguments.positional, List::Kind::kTuple);
    return context.Make(PercentFormat(context, format, tuple));
  }
  Dict dict;
  for (const auto& [name, value] : arguments.named) dict.Append(context.Make(name, true), value);
  return context.Make(PercentFormat(context, format, context.MakeDict(std::move(dict))));
}

}  // namespace

Filter FindTextFilter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> filters = {
      {"upper", MapFilter<Upper>},
      {"lower", MapFilter<Lower>},
      {"capitalize", MapFilter<Capitalize>},
      {"title", MapFilter<TitleWords>},
      {"trim", Trim},
      {"replace", ReplaceFilter},
      {"indent", Indent},
      {"truncate", Truncate},
      {"center", Center},
      {"wordcount", WordCount},
      {"string", String},
      {"format", Format},
  };
  auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace switchyard::jinja
