#include "text/jinja/text.h"

#include <algorithm>
#include <utility>

namespace switchyard::jinja {

Text::Text(std::string bytes, bool trusted) : bytes_(std::move(bytes)) {
  if (!bytes_.empty()) spans_.push_back({bytes_.size(), trusted});
}

void Text::Append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  bytes_ += bytes;
  if (!spans_.empty() && spans_.back().trusted == trusted) {
    spans_.back().end = bytes_.size();
  } else {
    spans_.push_back({bytes_.size(), trusted});
  }
}

void Text::Append(const Text& other) { Append(other, 0, other.size()); }

void Text::Append(const Text& other, size_t begin, size_t end) {
  auto span = std::upper_bound(other.spans_.begin(), other.spans_.end(), begin,
                               [](size_t at, const Span& s) { return at < s.end; });
  std::string_view bytes = other.bytes_;
  for (; begin < end; ++span) {
    size_t stop = std::min(end, span->end);
    Append(bytes.substr(begin, stop - begin), span->trusted);
    begin = stop;
  }
}

Text Text::Sub(size_t begin, size_t end) const {
  Text out;
  out.markup_ = markup_;
  out.Append(*this, begin, end);
  return out;
}

}  // namespace switchyard::jinja
