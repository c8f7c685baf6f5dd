// How many prompt rows a step may have beside decoding requests, so that their tokens keep coming.
#pragma once

#include <cstdint>

namespace switchyard {

// Learns from measured steps: the time of a step without prompts, and what a prompt row adds. The
// limit is the number of rows that fits the target time of a step. Prompt rows cost less each in
// larger steps, so the estimate follows the size that is used now. One thread: the leader's, which
// sends the limit to all ranks.
class PrefillPace {
 public:
  // `target_seconds`: of a step; 0: derived, 8 times a decode step and at least 25 ms.
  // `max_rows`: the chunk size. It is the limit until a step with prompt rows was measured.
  PrefillPace(double target_seconds, int64_t max_rows)
      : given_target_(target_seconds), max_rows_(max_rows), rows_(max_rows) {}

  // One measured step of all groups.
  void Observe(int64_t prompt_rows, int64_t decode_rows, double seconds);

  double target_seconds() const;
  // Between kLeastRows and max_rows. Changes only when the estimate moves by more than an eighth.
  int64_t rows() const { return rows_; }

  static constexpr int64_t kLeastRows = 16;

 private:
  const double given_target_;
  const int64_t max_rows_;
  int64_t rows_;
  double decode_seconds_ = 0;  // of a step without prompt rows; 0: unknown
  double row_seconds_ = 0;     // of a prompt row; 0: unknown
};

}  // namespace switchyard
