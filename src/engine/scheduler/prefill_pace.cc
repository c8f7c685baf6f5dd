#include "engine/scheduler/prefill_pace.h"

#include <algorithm>
#include <cmath>

namespace switchyard {
namespace {

constexpr double kMinTarget = 0.025, kDecodeSteps = 8;
constexpr double kWeight = 0.25;  // weight of a new measurement
// A delayed step, for instance by another process, counts for at most twice the estimate.
constexpr double kMaxGrowth = 2;

void Update(double& estimate, double measured) {
  if (estimate == 0) {
    estimate = measured;
  } else {
    estimate += kWeight * (std::min(measured, kMaxGrowth * estimate) - estimate);
  }
}

}  // namespace

void PrefillPace::Observe(int64_t prompt_rows, int64_t decode_rows, double seconds) {
  if (prompt_rows == 0) {
    if (decode_rows > 0) Update(decode_seconds_, seconds);
    return;
  }
  // The last rows of a prompt say little about the cost of a row in a full chunk.
  if (row_seconds_ > 0 && prompt_rows < rows_ / 2) return;
  const double base = decode_rows > 0 ? std::min(decode_seconds_, seconds / 2) : 0;
  Update(row_seconds_, (seconds - base) / static_cast<double>(prompt_rows));
  const double left = std::max(target_seconds() - decode_seconds_, 0.0);
  const double fits = std::min(left / row_seconds_, static_cast<double>(max_rows_));
  const int64_t rows = std::clamp(std::llround(fits), std::min<long long>(kMinRows, max_rows_),
                                  static_cast<long long>(max_rows_));
  if (8 * std::abs(rows - rows_) > rows_ || rows == max_rows_) rows_ = rows;
}

double PrefillPace::target_seconds() const {
  return given_target_ > 0 ? given_target_ : std::max(kMinTarget, kDecodeSteps * decode_seconds_);
}

}  // namespace switchyard
