// The passes that a rank remembers: a ring of the last ones, or all.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace switchyard {

// What one rank counted in one pass: its own tokens, or the rows of its experts (stat_approx). The
// sum over ranks is the whole pass.
struct RecordedStep {
  int64_t pass = 0;              // its number since the server started
  std::vector<int32_t> logical;  // [layers, experts]
  // Of per_token: the own tokens, ascending by row of the attention group.
  std::vector<int32_t> rows, positions;  // [n]
  std::vector<int64_t> request_ids;      // [n] EngineRequest::id
  std::vector<int32_t> topk_ids;         // [n, layers, top_k], −1 for none
};

// Owned by the recorder. Steady recording into a full ring allocates nothing.
class RecordedSteps {
 public:
  explicit RecordedSteps(int64_t capacity) : capacity_(capacity) {}  // −1: no limit

  // An empty one, the oldest's memory where the ring is full.
  RecordedStep& Append() {
    if (capacity_ >= 0 && static_cast<int64_t>(steps_.size()) == capacity_) {
      RecordedStep oldest = std::move(steps_.front());
      steps_.pop_front();
      oldest.logical.clear();
      oldest.rows.clear();
      oldest.positions.clear();
      oldest.request_ids.clear();
      oldest.topk_ids.clear();
      return steps_.emplace_back(std::move(oldest));
    }
    return steps_.emplace_back();
  }
  void Clear() { steps_.clear(); }
  const std::deque<RecordedStep>& steps() const { return steps_; }

 private:
  const int64_t capacity_;
  std::deque<RecordedStep> steps_;
};

}  // namespace switchyard
