#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "core/check.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

struct MarkedCharacter {
  utf8proc_int32_t character;
  int combining_class;  // 0 for a starter
  bool untrusted;
};

using MarkedCharacters = std::vector<MarkedCharacter>;

bool Composes(NormalizationForm form) {
  return form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
}

bool IsCompatibility(NormalizationForm form) {
  return form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
}

// True if the text is already normalized, by a quick check. Characters below U+0300 never compose
// with a preceding character, and NFC does not change them. For the other forms, the check accepts
// only ASCII.
bool IsUnchanged(const std::string& text, NormalizationForm form) {
  const unsigned char first_changed_lead = form == NormalizationForm::kNfc ? 0xCC : 0x80;
  return std::all_of(text.begin(), text.end(), [&](char byte) {
    return static_cast<unsigned char>(byte) < first_changed_lead;
  });
}

MarkedCharacters Decompose(const MarkedText& text, NormalizationForm form) {
  const int options =
      UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (IsCompatibility(form) ? UTF8PROC_COMPAT : 0);
  MarkedCharacters out;
  out.reserve(text.text().size());
  for (size_t i = 0; i < text.text().size();) {
    const size_t begin = i;
    const auto character = static_cast<utf8proc_int32_t>(NextCharacter(text.text(), &i));
    const bool untrusted = text.Untrusted({begin, i});
    utf8proc_int32_t parts[32];  // the longest decomposition, of U+FDFA, has 18 characters
    const auto count = utf8proc_decompose_char(character, parts, 32,
                                               static_cast<utf8proc_option_t>(options), nullptr);
    CHECK(0 <= count && count <= 32);
    for (utf8proc_ssize_t k = 0; k < count; ++k) {
      out.push_back({parts[k], utf8proc_get_property(parts[k])->combining_class, untrusted});
    }
  }
  return out;
}

// Canonical ordering: sorts each run of combining marks by class. (utf8proc's own sort is quadratic
// in the run's length.)
void Reorder(MarkedCharacters* characters) {
  auto begin = characters->begin();
  const auto is_starter = [](const MarkedCharacter& c) { return c.combining_class == 0; };
  while (begin != characters->end()) {
    begin = std::find_if_not(begin, characters->end(), is_starter);
    const auto end = std::find_if(begin, characters->end(), is_starter);
    std::stable_sort(begin, end, [](const MarkedCharacter& a, const MarkedCharacter& b) {
      return a.combining_class < b.combining_class;
    });
    begin = end;
  }
}

// Returns the primary composite of two characters, or -1.
utf8proc_int32_t ComposePair(utf8proc_int32_t first, utf8proc_int32_t second) {
  if (second < 0x300) return -1;
  utf8proc_int32_t pair[3] = {first, second, 0};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  return utf8proc_normalize_utf32(pair, 2, options) == 1 ? pair[0] : -1;
}

void Compose(MarkedCharacters* characters) {
  size_t size = 0;     // number of characters composed so far, in place
  size_t starter = 0;  // index of the last starter, if has_starter
  bool has_starter = false;
  int blocking_class = -1;  // class of the last mark kept since the starter; -1: none
  for (const MarkedCharacter& next : *characters) {
    if (has_starter && blocking_class < next.combining_class) {
      MarkedCharacter& base = (*characters)[starter];
      const utf8proc_int32_t composite = ComposePair(base.character, next.character);
      if (composite >= 0) {
        base.character = composite;
        base.untrusted |= next.untrusted;
        continue;
      }
    }
    if (next.combining_class == 0) {
      starter = size;
      has_starter = true;
      blocking_class = -1;
    } else {
      blocking_class = next.combining_class;
    }
    (*characters)[size++] = next;
  }
  characters->resize(size);
}

}  // namespace

MarkedText ToNormalizationForm(const MarkedText& text, NormalizationForm form) {
  if (IsUnchanged(text.text(), form)) return text;
  MarkedCharacters characters = Decompose(text, form);
  Reorder(&characters);
  if (Composes(form)) Compose(&characters);

  MarkedText out(text.marked());
  std::string utf8;
  for (const MarkedCharacter& c : characters) {
    utf8.clear();
    AppendUtf8(static_cast<char32_t>(c.character), &utf8);
    out.Append(utf8, c.untrusted);
  }
  return out;
}

}  // namespace switchyard
