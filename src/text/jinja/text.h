// A string with the provenance of its characters.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard::jinja {

// Valid UTF-8 in runs of equal trust. Operations that copy characters keep their runs. If an
// operation computes new characters (case, tojson), its result is trusted only if the whole input
// is trusted. Value type.
class Text {
 public:
  Text() = default;
  Text(std::string bytes, bool trusted);

  const std::string& str() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  std::string Take() && { return std::move(bytes_); }
  // Heap memory in bytes.
  size_t HeapBytes() const { return bytes_.capacity() + spans_.capacity() * sizeof(Span); }
  // Additional heap memory in bytes if `bytes` bytes in `runs` runs are appended.
  size_t GrowthBy(size_t bytes, size_t runs) const {
    const auto grown = [](size_t capacity, size_t needed) {
      return needed <= capacity ? 0 : std::max(2 * capacity, needed) - capacity;
    };
    return grown(bytes_.capacity(), bytes_.size() + bytes) +
           grown(spans_.capacity(), spans_.size() + runs) * sizeof(Span);
  }
  // Number of runs.
  size_t runs() const { return spans_.size(); }

  // True if no byte is untrusted; the empty text is trusted.
  bool trusted() const { return spans_.empty() || (spans_.size() == 1 && spans_[0].trusted); }

  // True for strings made by `safe` or `escape`: concatenation escapes the other operand
  // (MarkupSafe's rule).
  bool markup() const { return markup_; }
  void set_markup(bool markup) { markup_ = markup; }

  void Append(const Text& other);
  void Append(std::string_view bytes, bool trusted);
  // Appends bytes [begin, end) of `other`.
  void Append(const Text& other, size_t begin, size_t end);

  // Bytes [begin, end), with their runs.
  Text Sub(size_t begin, size_t end) const;

  // Calls visit(begin, end, trusted) for each run, in order.
  template <typename Visit>
  void ForEachRun(Visit visit) const {
    size_t begin = 0;
    for (const Span& span : spans_) {
      visit(begin, span.end, span.trusted);
      begin = span.end;
    }
  }

 private:
  // Neighbouring spans differ in trust and none is empty; the last one ends at bytes_.size().
  struct Span {
    size_t end;
    bool trusted;
  };

  std::string bytes_;
  std::vector<Span> spans_;
  bool markup_ = false;
};

}  // namespace switchyard::jinja
