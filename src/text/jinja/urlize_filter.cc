// The urlize filter, by the rules of jinja2.utils.urlize.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/utf8.h"
#include "text/tokenizer/text_pattern.h"

namespace switchyard::jinja {
namespace {

struct LinkOptions {
  std::optional<size_t> shown;  // maximum code points of a link's text
  std::string attributes;       // rel and target
  std::vector<std::string> schemes;
};

bool Matches(const TextPattern& pattern, const std::string& text) {
  return !text.empty() && !pattern.FindAll(text).empty();
}

bool IsWebAddress(const std::string& text) {
  static const TextPattern pattern = TextPattern::Regex(
      R"((?i)\A((https?://|www\.)(([\w%-]+\.)+)?([a-z]{2,63}|xn--[\w%]{2,59}))"
      R"(|([\w%-]{2,63}\.)+(com|net|int|edu|gov|org|info|mil))"
      R"(|(https?://)((([\d]{1,3})(\.[\d]{1,3}){3})|(\[([\da-f]{0,4}:){2}([\da-f]{0,4}:?){1,6}\]))))"
      R"((?::[\d]{1,5})?(?:[/?#]\S*)?\z)",
      "urlize");
  return Matches(pattern, text);
}

bool IsMailAddress(const std::string& text) {
  static const TextPattern pattern = TextPattern::Regex(R"(\A\S+@\w[\w.-]*\.\w+\z)", "urlize");
  return Matches(pattern, text);
}

size_t CountOf(const std::string& text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
    ++count;
  return count;
}

// A word, split from its leading and trailing punctuation.
struct Parts {
  std::string head, middle, tail;
};

Parts SplitPunctuation(const std::string& word) {
  static const TextPattern leading = TextPattern::Regex(R"(\A([(<]|&lt;)+)", "urlize");
  static const TextPattern trailing = TextPattern::Regex(R"(([)>.,\n]|&gt;)+\z)", "urlize");
  Parts parts{.middle = word};
  if (const auto found = leading.FindAll(parts.middle); !found.empty()) {
    parts.head = parts.middle.substr(0, found[0].end);
    parts.middle.erase(0, found[0].end);
  }
  if (parts.middle.empty()) return parts;
  if (const auto found = trailing.FindAll(parts.middle); !found.empty()) {
    parts.tail = parts.middle.substr(found[0].begin);
    parts.middle.resize(found[0].begin);
  }
  // Closing brackets that match opening brackets of the address belong to the address.
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kBrackets = {
      {{"(", ")"}, {"<", ">"}, {"&lt;", "&gt;"}}};
  for (const auto& [open, close] : kBrackets) {
    const size_t opened = CountOf(parts.middle, open);
    if (opened <= CountOf(parts.middle, close)) continue;
    for (size_t i = std::min(opened, CountOf(parts.tail, close)); i > 0; --i) {
      const size_t end = parts.tail.find(close) + close.size();
      parts.middle += parts.tail.substr(0, end);
      parts.tail.erase(0, end);
    }
  }
  return parts;
}

std::string Link(const std::string& text, const LinkOptions& options) {
  const auto shown = [&](const std::string& address) {
    if (!options.shown || CountCodePoints(address) <= *options.shown) return address;
    return address.substr(0, OffsetOfCodePoint(address, *options.shown)) + "...";
  };
  if (IsWebAddress(text)) {
    const bool full = text.starts_with("https://") || text.starts_with("http://");
    return fmt::format("<a href=\"{}{}\"{}>{}</a>", full ? "" : "https://", text,
                       options.attributes, shown(text));
  }
  if (text.starts_with("mailto:") && IsMailAddress(text.substr(7)))
    return fmt::format("<a href=\"{}\">{}</a>", text, text.substr(7));
  const bool mail = text.find('@') != std::string::npos && !text.starts_with("www.") &&
                    !text.starts_with("@") && text.find(':') == std::string::npos;
  if (mail && IsMailAddress(text)) return fmt::format("<a href=\"mailto:{}\">{}</a>", text, text);
  std::string out = text;
  for (const std::string& scheme : options.schemes) {
    if (out != scheme && out.starts_with(scheme))
      out = fmt::format("<a href=\"{}\"{}>{}</a>", out, options.attributes, out);
  }
  return out;
}

std::string EscapedText(std::string_view text) {
  return EscapeHtml(Text(std::string(text), true)).str();
}

LinkOptions OptionsOf(Context& context, const Bound& bound) {
  LinkOptions options;
  if (bound[0] && !bound[0]->IsNone())
    options.shown = static_cast<size_t>(std::clamp<Int>(bound.IntegerOr(0, 0), 0, 1 << 30));
  std::set<std::string> rel = {"noopener"};
  if (bound.TruthOr(1, false)) rel.insert("nofollow");
  if (bound[3] && !bound[3]->IsNone()) {
    for (const Text& part : Split(context, bound.TextOr(3, ""), std::nullopt, -1, false))
      rel.insert(part.str());
  }
  std::string joined;
  for (const std::string& part : rel) joined += (joined.empty() ? "" : " ") + part;
  options.attributes = " rel=\"" + EscapedText(joined) + "\"";
  if (bound[2] && !bound[2]->IsNone())
    options.attributes += " target=\"" + EscapedText(bound.TextOr(2, "").str()) + "\"";
  static const TextPattern scheme = TextPattern::Regex(R"(\A([\w.+-]{2,}:(/){0,2})\z)", "urlize");
  if (bound[4] && !bound[4]->IsNone()) {
    for (const Value& item : Iterate(context, *bound[4])->items) {
      options.schemes.push_back(Str(context, item).str());
      if (!Matches(scheme, options.schemes.back()))
        Fail("{} is not a valid URI scheme prefix.", QuotedString(options.schemes.back()));
    }
  }
  return options;
}

}  // namespace

Value Urlize(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("urlize", arguments,
              {"trim_url_limit", "nofollow", "target", "rel", "extra_schemes"});
  const LinkOptions options = OptionsOf(context, bound);
  const Text plain = Str(context, input);
  context.Scan(128 * plain.size());
  const std::string text = (plain.markup() ? plain : EscapeHtml(plain)).str();
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t word = SkipSpace(text, at);
    out.append(text, at, word - at);
    size_t end = word;
    for (size_t next = end; next < text.size(); end = next) {
      if (IsSpace(NextCharacter(text, &next))) break;
    }
    const Parts parts = SplitPunctuation(text.substr(word, end - word));
    out += parts.head + Link(parts.middle, options) + parts.tail;
    at = end;
  }
  return context.Make(std::move(out), plain.trusted());
}

}  // namespace switchyard::jinja
