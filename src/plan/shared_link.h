// A link whose rate the transfers in progress share equally (fair share).
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace switchyard::plan {

// Times are in seconds and must not decrease from call to call. A value type; single-threaded.
//
// Keeps the bytes that a transfer would have sent if it had been in progress since the beginning
// (`sent_`, "virtual time" of fair queueing, Demers et al., 1989). A transfer of b bytes that
// starts when this number is s ends when it is s + b, however many others start and end in between.
// So a start and an end take logarithmic time.
class SharedLink {
 public:
  explicit SharedLink(double bytes_per_second) : rate_(bytes_per_second) {}

  void Start(double now, double bytes, int64_t transfer) {
    Advance(now);
    ends_.push({sent_ + bytes, transfer});
  }
  // When the next transfer ends, unless others start before. Infinity: none is in progress.
  double NextEnd() const {
    if (ends_.empty()) return std::numeric_limits<double>::infinity();
    const double bytes = ends_.top().first - sent_;
    return now_ + bytes * static_cast<double>(ends_.size()) / rate_;
  }
  // Ends the transfer that NextEnd was computed for, at that time. Returns its number.
  int64_t End(double now) {
    Advance(now);
    const int64_t transfer = ends_.top().second;
    sent_ = ends_.top().first;  // without the rounding error of the division
    ends_.pop();
    return transfer;
  }

 private:
  using Ending = std::pair<double, int64_t>;  // value of sent_ at which a transfer ends

  void Advance(double now) {
    if (!ends_.empty()) sent_ += (now - now_) * rate_ / static_cast<double>(ends_.size());
    now_ = now;
  }

  double rate_, now_ = 0, sent_ = 0;
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> ends_;
};

}  // namespace switchyard::plan
