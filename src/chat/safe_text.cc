#include "chat/safe_text.h"

#include <cctype>

namespace switchyard::chat {

std::string WithoutControls(std::string_view text) {
  std::string kept;
  kept.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) continue;
    // U+0080 to U+009F, which some terminals treat like escape sequences.
    if (c == 0xc2 && i + 1 < text.size() &&
        (static_cast<unsigned char>(text[i + 1]) & 0xe0) == 0x80) {
      ++i;
      continue;
    }
    kept += text[i];
  }
  return kept;
}

std::string Shortened(std::string_view text) {
  constexpr size_t kMost = 500;
  std::string kept = WithoutControls(text);
  while (!kept.empty() && std::isspace(static_cast<unsigned char>(kept.back()))) kept.pop_back();
  if (kept.size() <= kMost) return kept;
  size_t cut = kMost;
  while (cut > 0 && (static_cast<unsigned char>(kept[cut]) & 0xc0) == 0x80) --cut;  // UTF-8
  return kept.substr(0, cut) + " ...";
}

}  // namespace switchyard::chat
