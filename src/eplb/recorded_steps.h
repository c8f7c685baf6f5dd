// Recorded passes of a rank. Keeps the last passes in a ring buffer, or all passes.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace switchyard {

// Counts of one rank in one pass. They cover the rank's own tokens or, with stat_approx, the rows
// of its experts. The sum over ranks covers the whole pass.
struct RecordedStep {
  int64_t pass = 0;              // index of the pass since the server started
  std::vector<int32_t> logical;  // [layers, experts]
  // per_token mode: this rank's own tokens, ascending by row of the attention group.
  std::vector<int32_t> rows, positions;  // [n]
  std::vector<int64_t> request_ids;      // [n] EngineRequest::id
  std::vector<int32_t> topk_ids;         // [n, layers, top_k], −1 for none
};

// Owned by the recorder. Recording into a full ring buffer allocates nothing in steady state.
class RecordedSteps {
 public:
  explicit RecordedSteps(int64_t capacity) : capacity_(capacity) {}  // −1: no limit

  // Appends an empty step, which reuses the oldest step's memory if the buffer is full.
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
