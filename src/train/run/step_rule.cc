#include "train/run/step_rule.h"

#include <fmt/format.h>

#include <cmath>

namespace switchyard::train {
namespace {

struct Spread {
  double mean = 0, deviation = 0;
};

Spread SpreadOf(const std::vector<double>& values) {
  Spread spread;
  for (const double v : values) spread.mean += v;
  spread.mean /= static_cast<double>(values.size());
  double squares = 0;
  for (const double v : values) squares += (v - spread.mean) * (v - spread.mean);
  spread.deviation = std::sqrt(squares / static_cast<double>(values.size()));
  return spread;
}

// Why `value` is a spike; empty: it is none.
std::string DescribeSpike(const char* what, double value, double sigmas,
                          const std::vector<double>& before) {
  if (before.size() < StepHistory::kLeast) return {};
  const Spread spread = SpreadOf(before);
  if (value - spread.mean <= sigmas * spread.deviation) return {};
  return fmt::format(
      "{} {:.4g} exceeds the mean {:.4g} of the last {} steps by more than {:g} "
      "standard deviations ({:.2g})",
      what, value, spread.mean, before.size(), sigmas, spread.deviation);
}

void Remember(double value, std::vector<double>* values) {
  if (values->size() >= StepHistory::kWindow) values->erase(values->begin());
  values->push_back(value);
}

}  // namespace

std::string DescribeNonfinite(double loss, const std::string& not_finite) {
  if (std::isfinite(loss) && not_finite.empty()) return {};
  return fmt::format(
      "the loss is {}{}", loss,
      not_finite.empty() ? std::string() : ", the gradient of " + not_finite + " is not finite");
}

std::string ReasonToSkip(const StepRuleOptions& options, double loss, double norm,
                         const std::string& not_finite, StepHistory* history) {
  std::string why = DescribeNonfinite(loss, not_finite);
  if (why.empty() && options.spike_sigmas > 0) {
    why = DescribeSpike("the loss", loss, options.spike_sigmas, history->losses);
    if (why.empty())
      why = DescribeSpike("the gradient norm", norm, options.spike_sigmas, history->norms);
    Remember(loss, &history->losses);
    Remember(norm, &history->norms);
  }
  history->skipped = why.empty() ? 0 : history->skipped + 1;
  return why;
}

}  // namespace switchyard::train
