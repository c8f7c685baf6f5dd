#include <algorithm>
#include <cstring>

#include "text/jinja/operators.h"
#include "text/jinja/utf8.h"

namespace switchyard::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// True if the code point at [begin, end) of `bytes` is to be stripped.
bool Stripped(std::string_view bytes, size_t begin, size_t end, const std::optional<Text>& chars) {
  if (chars) return chars->str().find(bytes.substr(begin, end - begin)) != kNone;
  return IsSpace(NextCharacter(bytes, &begin));
}

std::vector<Text> SplitAtSpace(Context& context, const Text& text, size_t limit) {
  std::vector<Text> parts;
  std::string_view bytes = text.str();
  size_t at = SkipSpace(bytes);
  while (at < bytes.size()) {
    context.Step();
    size_t end = at;
    if (parts.size() == limit) {
      parts.push_back(text.Sub(at, bytes.size()));
      break;
    }
    for (size_t next = end; next < bytes.size() && !IsSpace(NextCharacter(bytes, &next));
         end = next) {
    }
    parts.push_back(text.Sub(at, end));
    at = SkipSpace(bytes, end);
  }
  return parts;
}

std::vector<Text> RSplitAtSpace(Context& context, const Text& text, size_t limit) {
  std::vector<Text> parts;
  std::string_view bytes = text.str();
  size_t end = TrimmedEnd(bytes);
  while (end > 0) {
    context.Step();
    size_t begin = end;
    if (parts.size() == limit) {
      parts.push_back(text.Sub(0, end));
      break;
    }
    while (begin > 0) {
      size_t start = begin - 1;
      while (start > 0 && IsContinuation(bytes[start])) --start;
      size_t at = start;
      if (IsSpace(NextCharacter(bytes, &at))) break;
      begin = start;
    }
    parts.push_back(text.Sub(begin, end));
    end = TrimmedEnd(bytes.substr(0, begin));
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

// Applies a case mapping to each run separately, so that each run keeps its trust.
template <typename Map>
Text MapRuns(Context& context, const Text& text, Map map) {
  context.Scan(4 * text.size());
  Text out;
  out.set_markup(text.markup());
  text.ForEachRun([&](size_t begin, size_t end, bool trusted) {
    out.Append(map(std::string_view(text.str()).substr(begin, end - begin)), trusted);
  });
  return out;
}

}  // namespace

size_t FindBytes(Context& context, std::string_view haystack, std::string_view needle,
                 size_t from) {
  if (from > haystack.size()) return kNone;
  if (needle.empty()) return from;
  const void* found =
      memmem(haystack.data() + from, haystack.size() - from, needle.data(), needle.size());
  size_t at =
      found ? static_cast<size_t>(static_cast<const char*>(found) - haystack.data()) : kNone;
  context.Scan(needle.size() + (found ? at : haystack.size()) - from);
  return at;
}

size_t RFindBytes(Context& context, std::string_view haystack, std::string_view needle) {
  context.Step((1 + haystack.size() / 64) * (1 + needle.size() / 64));
  return haystack.rfind(needle);
}

Text Strip(Context& context, const Text& text, const std::optional<Text>& chars, bool left,
           bool right) {
  std::string_view bytes = text.str();
  context.Step((1 + bytes.size() / 64) * (1 + (chars ? chars->size() / 16 : 0)));
  size_t begin = 0;
  size_t end = bytes.size();
  while (left && begin < end) {
    size_t next = OffsetOfCodePoint(bytes, 1, begin);
    if (!Stripped(bytes, begin, next, chars)) break;
    begin = next;
  }
  while (right && end > begin) {
    size_t start = end - 1;
    while (start > begin && IsContinuation(bytes[start])) --start;
    if (!Stripped(bytes, start, end, chars)) break;
    end = start;
  }
  return text.Sub(begin, end);
}

Text Replace(Context& context, const Text& text, const Text& from, const Text& to, Int count) {
  Text out;
  out.set_markup(text.markup());
  size_t done = 0;  // number of bytes of `text` already in `out`
  for (Int n = 0; count < 0 || n < count; ++n) {
    size_t at;
    if (from.empty()) {
      // An empty pattern matches between all characters, and at both ends.
      at = n == 0 ? 0 : OffsetOfCodePoint(text.str(), 1, done);
      if (n > 0 && done == text.size()) break;
    } else {
      at = FindBytes(context, text.str(), from.str(), done);
      if (at == kNone) break;
    }
    context.Allocate(at - done + to.size());
    context.Step();
    out.Append(text, done, at);
    out.Append(to);
    done = at + from.size();
  }
  out.Append(text, done, text.size());
  return out;
}

std::vector<Text> Split(Context& context, const Text& text, const std::optional<Text>& separator,
                        Int limit, bool from_right) {
  context.Scan(2 * text.size());
  size_t splits =
      limit < 0 || limit > static_cast<Int>(text.size()) ? kNone : static_cast<size_t>(limit);
  if (!separator)
    return from_right ? RSplitAtSpace(context, text, splits) : SplitAtSpace(context, text, splits);
  if (separator->empty()) Fail("empty separator");
  std::vector<Text> parts;
  std::string_view bytes = text.str();
  if (from_right) {
    size_t end = bytes.size();
    while (parts.size() < splits) {
      size_t at = RFindBytes(context, bytes.substr(0, end), separator->str());
      if (at == kNone) break;
      parts.push_back(text.Sub(at + separator->size(), end));
      end = at;
    }
    parts.push_back(text.Sub(0, end));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t begin = 0;
  while (parts.size() < splits) {
    size_t at = FindBytes(context, bytes, separator->str(), begin);
    if (at == kNone) break;
    context.Allocate(sizeof(Text));
    parts.push_back(text.Sub(begin, at));
    begin = at + separator->size();
  }
  parts.push_back(text.Sub(begin, text.size()));
  return parts;
}

std::vector<Text> SplitLines(Context& context, const Text& text, bool keep_ends) {
  context.Scan(4 * text.size());
  std::vector<Text> lines;
  std::string_view bytes = text.str();
  auto is_break = [](char32_t c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
  };
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    size_t end = at;
    char32_t c = NextCharacter(bytes, &at);
    if (!is_break(c)) continue;
    if (c == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    context.Allocate(sizeof(Text));
    lines.push_back(text.Sub(begin, keep_ends ? at : end));
    begin = at;
  }
  if (begin < bytes.size()) lines.push_back(text.Sub(begin, bytes.size()));
  return lines;
}

Text Upper(Context& context, const Text& text) { return MapRuns(context, text, ToUpper); }

Text Lower(Context& context, const Text& text) { return MapRuns(context, text, ToLower); }

Text Capitalize(Context& context, const Text& text) {
  size_t first = OffsetOfCodePoint(text.str(), 1);
  Text out = Upper(context, text.Sub(0, first));
  out.Append(Lower(context, text.Sub(first, text.size())));
  return out;
}

}  // namespace switchyard::jinja
