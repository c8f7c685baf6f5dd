#include "server/front/stop_strings.h"

#include <algorithm>
#include <utility>

namespace switchyard {

std::string StopStrings::Push(std::string_view text) {
  if (matched_) return {};
  held_ += text;
  // The earliest match wins; of several at one place the longest, so that the order of `stop` does
  // not matter.
  size_t begin = std::string::npos;
  const std::string* found = nullptr;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at < begin || (at == begin && found && stop.size() > found->size())) {
      begin = at;
      found = &stop;
    }
  }
  if (found) {
    matched_ = *found;
    held_.resize(begin + (keep_match_ ? found->size() : 0));
    return std::exchange(held_, {});
  }
  const size_t shown = held_.size() - HoldBack();
  std::string out = held_.substr(0, shown);
  held_.erase(0, shown);
  return out;
}

std::string StopStrings::Finish() { return matched_ ? std::string() : std::exchange(held_, {}); }

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
