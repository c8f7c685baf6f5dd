// Limits the prompt rows of a step that also decodes, to bound inter-token latency.
#pragma once

#include <cstdint>

namespace switchyard {

// Estimates two times from measured steps: the time of a step without prompts, and the additional
// time per prompt row. The limit is the number of rows that fit the target time of a step. Prompt
// rows are cheaper in larger steps, so the estimate is updated with measurements of the current
// size. Used only by the leader's thread, which sends the limit to all ranks.
class PrefillPace {
 public:
  // `target_seconds`: target time of a step; 0: the time of 8 decode steps, limited to 25 to 50 ms,
  // but at least the time of 2 decode steps. `max_rows`: the chunk size, which is the limit until a
  // step with prompt rows was measured.
  PrefillPace(double target_seconds, int64_t max_rows)
      : given_target_(target_seconds), max_rows_(max_rows), rows_(max_rows) {}

  // Records one measured step of all groups.
  void Observe(int64_t prompt_rows, int64_t decode_rows, double seconds);

  double target_seconds() const;
  // Between kMinRows and max_rows. Changes only when the estimate moves by more than an eighth.
  int64_t rows() const { return rows_; }

  static constexpr int64_t kMinRows = 16;

 private:
  const double given_target_;
  const int64_t max_rows_;
  int64_t rows_;
  double decode_seconds_ = 0;  // time of a step without prompt rows; 0: unknown
  double row_seconds_ = 0;     // time per prompt row; 0: unknown
};

}  // namespace switchyard
