#include "engine/step_time_limit.h"

#include <algorithm>

namespace switchyard {
namespace {

constexpr int64_t kSmallRows = 64;
constexpr int64_t kLogitRowCost = 4;
// The limit is this factor times the estimated time of a step. A rank sends a heartbeat in each
// layer, so even a rank that is several times slower than before sends one within the limit.
constexpr double kMargin = 2;
constexpr double kDecay = 0.98;  // factor on the slowest step for each later step

void ToSlowest(double* slowest, double now) { *slowest = std::max(now, *slowest * kDecay); }

}  // namespace

int64_t StepTimeLimit::RowsOf(std::span<const StepCounts> groups) {
  int64_t rows = 0;
  for (const StepCounts& group : groups) rows += group.tokens + kLogitRowCost * group.logit_rows;
  return rows;
}

std::chrono::milliseconds StepTimeLimit::Of(int64_t rows) const {
  if (small_ <= 0) return kUnmeasured;
  double seconds = small_;
  if (rows > kSmallRows) {
    // Before the first large step is measured, each row is assumed to take at most as long as a
    // whole small step.
    seconds += static_cast<double>(rows) * (per_row_ > 0 ? per_row_ : small_);
  }
  return std::chrono::ceil<std::chrono::milliseconds>(Seconds(kMargin * seconds));
}

void StepTimeLimit::Observe(int64_t rows, Seconds time) {
  if (rows > kSmallRows) {
    ToSlowest(&per_row_, time.count() / static_cast<double>(rows));
  } else if (rows > 0) {
    ToSlowest(&small_, time.count());
  }
}

}  // namespace switchyard
