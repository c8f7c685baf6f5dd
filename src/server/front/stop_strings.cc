#include "server/front/stop_strings.h"

#include <algorithm>
#include <utility>

namespace switchyard {

std::string StopStrings::Push(const Piece& piece) {
  if (matched_) return {};
  if (stops_.empty()) return std::string(piece.hidden ? std::string_view() : piece.text);
  held_ += piece.text;
  hidden_.resize(held_.size(), piece.hidden);
  if (!piece.may_stop) unchecked_ = held_.size();
  size_t begin = 0;
  const std::string* found = nullptr;
  if (FindMatch(&begin, &found)) {
    matched_ = *found;
    std::string out = Release(begin);
    if (keep_match_) out += *matched_;
    held_.clear();
    hidden_.clear();
    return out;
  }
  return Release(held_.size() - HoldBack());
}

// Finds the earliest match, and the longest of several matches at the same position. So the order
// of the stop strings has no effect.
bool StopStrings::FindMatch(size_t* begin, const std::string** found) const {
  *found = nullptr;
  *begin = std::string::npos;
  for (const std::string& stop : stops_) {
    // First position at which a match ends after the unchecked bytes.
    const size_t from = unchecked_ >= stop.size() ? unchecked_ - stop.size() + 1 : 0;
    const size_t at = held_.find(stop, from);
    if (at < *begin || (at == *begin && *found && stop.size() > (*found)->size())) {
      *begin = at;
      *found = &stop;
    }
  }
  return *found != nullptr;
}

std::string StopStrings::Release(size_t bytes) {
  std::string out;
  for (size_t i = 0; i < bytes; ++i)
    if (!hidden_[i]) out += held_[i];
  held_.erase(0, bytes);
  hidden_.erase(hidden_.begin(), hidden_.begin() + static_cast<std::ptrdiff_t>(bytes));
  unchecked_ -= std::min(unchecked_, bytes);
  return out;
}

std::string StopStrings::Finish() { return matched_ ? std::string() : Release(held_.size()); }

size_t StopStrings::HoldBack() const {
  size_t most = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(held_.size(), stop.size() - 1); n > most; --n) {
      if (std::string_view(held_).substr(held_.size() - n) == std::string_view(stop).substr(0, n))
        most = n;
    }
  }
  return most;
}

}  // namespace switchyard
