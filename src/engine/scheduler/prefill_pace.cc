#include "engine/scheduler/prefill_pace.h"

#include <algorithm>
#include <cmath>

namespace switchyard {
namespace {

// Limits of the derived target in seconds. Longer gaps are noticeable in streams, and shorter steps
// waste weight reads.
constexpr double kMinTarget = 0.025, kMaxTarget = 0.050;
constexpr double kDecodeSteps = 8, kMinDecodeSteps = 2;
constexpr double kWeight = 0.25;  // weight of a new measurement
// A step that another process delays counts as at most twice the estimate.
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
  // The time of a prompt's last few rows is a poor estimate for the rows of a full chunk.
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
  if (given_target_ > 0) return given_target_;
  const double derived = std::clamp(kDecodeSteps * decode_seconds_, kMinTarget, kMaxTarget);
  return std::max(derived, kMinDecodeSteps * decode_seconds_);
}

}  // namespace switchyard
