#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/utf8.h"
#include "text/tokenizer/text_pattern.h"

namespace switchyard::jinja {
namespace {

// ---- wordwrap, by the rules of Python's textwrap

struct WrapOptions {
  size_t width;
  bool break_long_words;
  bool break_on_hyphens;
};

// Splits a line into the chunks between which it may break: words, parts of hyphenated words,
// dashes, white space.
std::vector<Text> WrapChunks(const Text& line, bool break_on_hyphens) {
  // TextWrapper.wordsep_re of Python's textwrap, without its unused groups.
  static const TextPattern hyphens = TextPattern::Regex(
      R"([\t\n\x0b\x0c\r ]+|(?<=[\w!"'&.,?])-{2,}(?=\w)|[^\t\n\x0b\x0c\r ]+?(?:-(?:(?<=[^\d\W]{2}-)|)"
      R"((?<=[^\d\W]-[^\d\W]-))(?=[^\d\W]-?[^\d\W])|(?=[\t\n\x0b\x0c\r ]|\z)|(?<=[\w!"'&.,?])(?=-{2,}\w)))",
      "wordwrap");
  static const TextPattern spaces = TextPattern::Regex(R"([\t\n\x0b\x0c\r ]+)", "wordwrap");
  std::vector<Text> chunks;
  size_t done = 0;
  const auto add = [&](size_t begin, size_t end) {
    if (begin < end) chunks.push_back(line.Sub(begin, end));
  };
  for (const TextRange& match : (break_on_hyphens ? hyphens : spaces).FindAll(line.str())) {
    add(done, match.begin);
    add(match.begin, match.end);
    done = match.end;
  }
  add(done, line.size());
  return chunks;
}

bool IsBlank(const Text& text) { return SkipSpace(text.str()) == text.size(); }

// Number of code points of a chunk to put on a line with `room` code points left. With
// `break_on_hyphens`, breaks after the last hyphen that fits, if other characters precede this
// hyphen.
size_t LongWordPart(const Text& chunk, size_t room, bool break_on_hyphens) {
  const std::string& bytes = chunk.str();
  if (!break_on_hyphens || CountCodePoints(bytes) <= room) return room;
  const size_t end = OffsetOfCodePoint(bytes, room);
  const size_t hyphen = end == 0 ? std::string::npos : bytes.rfind('-', end - 1);
  if (hyphen == std::string::npos || hyphen == 0) return room;
  if (bytes.find_first_not_of('-') >= hyphen) return room;
  return CountCodePoints(std::string_view(bytes).substr(0, hyphen)) + 1;
}

std::vector<Text> WrapLine(const Text& line, const WrapOptions& options) {
  std::vector<Text> chunks = WrapChunks(line, options.break_on_hyphens);
  std::reverse(chunks.begin(), chunks.end());
  std::vector<Text> lines;
  while (!chunks.empty()) {
    if (!lines.empty() && IsBlank(chunks.back())) {
      chunks.pop_back();
      if (chunks.empty()) break;
    }
    std::vector<Text> current;
    size_t length = 0;
    while (!chunks.empty() && length + CountCodePoints(chunks.back().str()) <= options.width) {
      length += CountCodePoints(chunks.back().str());
      current.push_back(std::move(chunks.back()));
      chunks.pop_back();
    }
    if (!chunks.empty() && CountCodePoints(chunks.back().str()) > options.width) {
      Text& chunk = chunks.back();
      if (options.break_long_words) {
        const size_t count = LongWordPart(chunk, options.width - length, options.break_on_hyphens);
        const size_t cut = OffsetOfCodePoint(chunk.str(), count);
        current.push_back(chunk.Sub(0, cut));
        chunk = chunk.Sub(cut, chunk.size());
      } else if (current.empty()) {
        current.push_back(std::move(chunk));
        chunks.pop_back();
      }
    }
    if (!current.empty() && IsBlank(current.back())) current.pop_back();
    if (current.empty()) continue;
    Text joined;
    for (const Text& part : current) joined.Append(part);
    lines.push_back(std::move(joined));
  }
  return lines;
}

Value WordWrap(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("wordwrap", arguments,
              {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  if (!input.IsString()) Fail("'{}' object has no attribute 'splitlines'", TypeName(input));
  const Int width = bound.IntegerOr(0, 79);
  const WrapOptions options{static_cast<size_t>(std::clamp<Int>(width, 0, 1 << 30)),
                            bound.TruthOr(1, true), bound.TruthOr(3, true)};
  const Text newline = bound[2] && !bound[2]->IsNone() ? bound.TextOr(2, "") : Text("\n", true);
  context.Scan(256 * input.text().size());
  Text out;
  bool first = true;
  for (const Text& line : SplitLines(context, input.text(), false)) {
    if (!std::exchange(first, false)) out.Append(newline);
    if (width <= 0) Fail("invalid width {} (must be > 0)", IntegerString(width));
    bool first_part = true;
    for (const Text& part : WrapLine(line, options)) {
      context.Allocate(part.size() + newline.size());
      if (!std::exchange(first_part, false)) out.Append(newline);
      out.Append(part);
    }
  }
  return context.Make(std::move(out));
}

// ---- others

Value FileSizeFormat(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("filesizeformat", arguments, {"binary"});
  const bool binary = bound.TruthOr(0, false);
  const Value number = ApplyFilter(context, "float", input, {{Value()}, {}});
  if (!number.IsFloat()) Fail("could not convert {} to float", Repr(context, input).str());
  const double bytes = number.floating();
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return context.Make("1 Byte", true);
  const auto trusted = !input.IsString() || input.text().trusted();
  if (bytes < base)
    return context.Make(fmt::format("{} Bytes", static_cast<int64_t>(bytes)), trusted);
  static constexpr std::array<const char*, 8> kDecimal = {"kB", "MB", "GB", "TB",
                                                          "PB", "EB", "ZB", "YB"};
  static constexpr std::array<const char*, 8> kBinary = {"KiB", "MiB", "GiB", "TiB",
                                                         "PiB", "EiB", "ZiB", "YiB"};
  double unit = base * base;
  size_t i = 0;
  for (; i + 1 < kDecimal.size() && bytes >= unit; ++i) unit *= base;
  return context.Make(
      fmt::format("{:.1f} {}", base * bytes / unit, (binary ? kBinary : kDecimal)[i]), trusted);
}

// Python's pprint.pformat with its width of 80 columns, except that long strings are not split.
class PrettyPrinter {
 public:
  explicit PrettyPrinter(Context& context) : context_(context) {}

  // `indent`: column of the value's start; `allowance`: number of closing brackets after it.
  void Print(const Value& value, size_t indent, size_t allowance) {
    constexpr size_t kWidth = 80;
    const Value sorted = Sorted(value);
    const Text plain = Repr(context_, sorted);
    const bool container = sorted.IsDict() ||
                           (sorted.IsList() && sorted.list().kind == List::Kind::kList) ||
                           (sorted.IsList() && sorted.list().kind == List::Kind::kTuple);
    context_.Scan(plain.size());
    if (!container || indent + allowance + CountCodePoints(plain.str()) <= kWidth) {
      trusted_ = trusted_ && plain.trusted();
      context_.Allocate(plain.size());
      out_ += plain.str();
    } else if (sorted.IsDict()) {
      PrintDict(sorted.dict(), indent, allowance);
    } else {
      PrintList(sorted.list(), indent, allowance);
    }
  }

  Text Take() && { return Text(std::move(out_), trusted_); }

 private:
  // Sorts dicts by key, at all levels.
  Value Sorted(const Value& value) {
    if (value.IsList() && value.list().IsSequence() && value.list().kind != List::Kind::kRange) {
      std::vector<Value> items;
      for (const Value& item : value.list().items) items.push_back(Sorted(item));
      return context_.MakeList(std::move(items), value.list().kind);
    }
    if (!value.IsDict()) return value;
    std::vector<Dict::Entry> entries = value.dict().entries();
    context_.Step(8 * entries.size());
    std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
      if (a.first.IsString() == b.first.IsString() && a.first.IsNumber() == b.first.IsNumber())
        return Less(context_, a.first, b.first);
      return TypeName(a.first) < TypeName(b.first);
    });
    Dict dict;
    for (auto& [key, item] : entries) dict.Append(key, Sorted(item));
    return context_.MakeDict(std::move(dict));
  }

  void NewLine(size_t indent) {
    context_.Allocate(indent + 1);
    out_ += ",\n" + std::string(indent, ' ');
  }

  void PrintDict(const Dict& dict, size_t indent, size_t allowance) {
    out_ += '{';
    for (size_t i = 0; i < dict.size(); ++i) {
      if (i) NewLine(indent + 1);
      const auto& [key, value] = dict.entries()[i];
      const Text name = Repr(context_, key);
      trusted_ = trusted_ && name.trusted();
      out_ += name.str() + ": ";
      const bool last = i + 1 == dict.size();
      Print(value, indent + 1 + CountCodePoints(name.str()) + 2, last ? allowance + 1 : 1);
    }
    out_ += '}';
  }

  void PrintList(const List& list, size_t indent, size_t allowance) {
    const bool tuple = list.kind == List::Kind::kTuple;
    const char* const end = !tuple ? "]" : list.items.size() == 1 ? ",)" : ")";
    out_ += tuple ? '(' : '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i) NewLine(indent + 1);
      const bool last = i + 1 == list.items.size();
      Print(list.items[i], indent + 1, last ? allowance + std::string_view(end).size() : 1);
    }
    out_ += end;
  }

  Context& context_;
  std::string out_;
  bool trusted_ = true;
};

Value PPrint(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("pprint", arguments, {});
  PrettyPrinter printer(context);
  printer.Print(input, 0, 0);
  return context.Make(std::move(printer).Take());
}

}  // namespace

Filter FindLayoutFilter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> filters = {
      {"wordwrap", WordWrap}, {"filesizeformat", FileSizeFormat}, {"pprint", PPrint}};
  auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace switchyard::jinja
