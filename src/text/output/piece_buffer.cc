#include "text/output/piece_buffer.h"

#include <algorithm>

#include "text/output/output_events.h"

namespace switchyard {

void PieceBuffer::Append(std::string_view piece) {
  if (at_ > text_.size() / 2) {
    text_.erase(0, at_);
    at_ = 0;
  }
  text_ += piece;
}

void PieceBuffer::Consume(size_t bytes) {
  at_ += bytes;
  searched_ -= std::min(searched_, bytes);
}

void PieceBuffer::ConsumeSpace() {
  const std::string_view text = rest();
  size_t bytes = 0;
  while (bytes < text.size() && IsMarkupSpace(text[bytes])) ++bytes;
  Consume(bytes);
}

PieceBuffer::Found PieceBuffer::Find(std::span<const std::string_view> markers) {
  if (markers.data() != last_) searched_ = 0;
  last_ = markers.data();
  std::string first_bytes;
  for (const std::string_view marker : markers) first_bytes += marker[0];
  const std::string_view text = rest();
  for (size_t at = text.find_first_of(first_bytes, searched_); at != std::string_view::npos;
       at = text.find_first_of(first_bytes, at + 1)) {
    const std::string_view tail = text.substr(at);
    for (const std::string_view marker : markers) {
      if (tail.starts_with(marker)) return {at, marker};
    }
    const bool partly = std::ranges::any_of(
        markers, [tail](std::string_view marker) { return marker.starts_with(tail); });
    if (partly && !ended_) {
      searched_ = at;
      return {at, {}};
    }
  }
  searched_ = text.size();
  return {text.size(), {}};
}

PieceBuffer::Match PieceBuffer::StartsWith(std::string_view marker) const {
  const std::string_view text = rest();
  if (text.starts_with(marker)) return Match::kYes;
  return marker.starts_with(text) && !ended_ ? Match::kPartly : Match::kNo;
}

}  // namespace switchyard
