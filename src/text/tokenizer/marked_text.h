// Text with untrusted bytes marked: they must not become special tokens.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace switchyard {

// Half-open range of bytes.
struct TextRange {
  size_t begin;
  size_t end;
  size_t size() const { return end - begin; }
  bool operator==(const TextRange&) const = default;
};

// Valid UTF-8. Normalizers carry the marks along with the characters that they rewrite. A text
// without marks, the usual case, is trusted throughout and has no overhead.
class MarkedText {
 public:
  // `marked`: true if any part of the text may be untrusted.
  explicit MarkedText(bool marked) : marked_(marked) {}
  explicit MarkedText(std::string text) : text_(std::move(text)), marked_(false) {}

  const std::string& text() const { return text_; }
  bool marked() const { return marked_; }

  void Append(std::string_view text, bool untrusted) {
    text_.append(text);
    if (marked_) untrusted_.append(text.size(), untrusted ? 1 : 0);
  }

  void Append(const MarkedText& other, TextRange range) {
    text_.append(other.text_, range.begin, range.size());
    if (!marked_) return;
    if (other.marked_) {
      untrusted_.append(other.untrusted_, range.begin, range.size());
    } else {
      untrusted_.append(range.size(), 0);
    }
  }

  // Returns a part of the text, with marks only if `marked` is true.
  MarkedText Part(TextRange range, bool marked) const {
    MarkedText part(marked && marked_);
    part.Append(*this, range);
    return part;
  }

  bool Untrusted(TextRange range) const {
    if (!marked_) return false;
    const auto begin = untrusted_.begin() + static_cast<std::ptrdiff_t>(range.begin);
    return std::any_of(begin, begin + static_cast<std::ptrdiff_t>(range.size()),
                       [](char mark) { return mark != 0; });
  }

 private:
  std::string text_;
  bool marked_;
  std::string untrusted_;  // if marked_: one byte per byte of text_; 1: untrusted
};

}  // namespace switchyard
