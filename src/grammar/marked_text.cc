#include "grammar/marked_text.h"

#include <algorithm>
#include <optional>

namespace switchyard {
namespace {

using Format = nlohmann::ordered_json;

std::optional<int32_t> TokenOf(std::string_view text, const SpecialTokens& special) {
  const auto found = std::ranges::find(special, text, &SpecialTokens::value_type::first);
  return found == special.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

Format MarkedText(std::string_view text, const SpecialTokens& special) {
  Format elements = Format::array();
  const auto add_text = [&](std::string_view part) {
    if (!part.empty()) elements.push_back({{"type", "const_string"}, {"value", part}});
  };
  while (!text.empty()) {
    const SpecialTokens::value_type* first = nullptr;
    size_t begin = text.size();
    for (const auto& token : special) {
      if (const size_t at = text.find(token.first); at < begin) {
        begin = at;
        first = &token;
      }
    }
    add_text(text.substr(0, begin));
    if (!first) break;
    elements.push_back({{"type", "token"}, {"token", first->second}});
    text.remove_prefix(begin + first->first.size());
  }
  return elements;
}

Format TextUntil(const std::vector<std::string>& markers, const SpecialTokens& special) {
  Format tokens = Format::array();
  for (const std::string& marker : markers)
    if (const auto token = TokenOf(marker, special)) tokens.push_back(*token);
  if (tokens.size() == markers.size())
    return Format::array({{{"type", "any_tokens"}, {"exclude_tokens", std::move(tokens)}}});
  return Format::array({{{"type", "any_text"}, {"excludes", markers}}});
}

Format SequenceOf(Format elements) {
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

}  // namespace switchyard
