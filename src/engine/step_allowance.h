// How long a step may take, from the times of earlier steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "engine/rank_engine.h"

namespace switchyard {

// The time limit of a step: a rank that exceeds it is assumed to hang. The limit is estimated from
// the slowest similar steps so far, with less weight for older steps. Small steps read all weights,
// so their time hardly depends on the rows; the time of large steps is proportional to them. Used
// by the rank's thread.
class StepAllowance {
 public:
  using Seconds = std::chrono::duration<double>;

  // The number of rows that estimates the time of a step. A row of logits counts additionally as
  // several rows, because the host reads it.
  static int64_t RowsOf(std::span<const StepCounts> groups);

  // Of returns the limit for a step with `rows` rows (RowsOf). It is kUnmeasured until a step was
  // measured.
  static constexpr std::chrono::milliseconds kUnmeasured{30'000};
  std::chrono::milliseconds Of(int64_t rows) const;
  void Observe(int64_t rows, Seconds time);

 private:
  double small_ = 0;    // seconds of a step with few rows; 0: unknown
  double per_row_ = 0;  // seconds for each row of a large step; 0: unknown
};

}  // namespace switchyard
