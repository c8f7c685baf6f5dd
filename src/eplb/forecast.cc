#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "eplb/layer_plan.h"

namespace switchyard {
namespace {

constexpr std::array<float, 4> kHalfLives{1, 3, 10, 40};
constexpr float kErrorHalfLife = 10;

// Moving averages of one layer's load, one for each half-life. Loops run over experts only, so that
// they vectorize.
class Averages {
 public:
  explicit Averages(int experts) : experts_(experts), of_(kHalfLives.size()) {
    for (size_t i = 0; i < of_.size(); ++i) {
      of_[i].mean.assign(experts, 0.0f);
      of_[i].error.assign(experts, 0.0f);
      of_[i].keep = std::exp2(-1.0f / kHalfLives[i]);
    }
  }

  void Step(std::span<const int32_t> counts) {
    const float forget = std::exp2(-1.0f / kErrorHalfLife);
    for (One& one : of_) {
      const float held = one.total > 0 ? 1.0f : 0.0f;  // the first step has no forecast
      one.total = one.total * one.keep + 1;
      const float weight = 1 / one.total;
      float* const mean = one.mean.data();
      float* const error = one.error.data();
      for (int i = 0; i < experts_; ++i) {
        const float off = static_cast<float>(counts[i]) - mean[i];
        error[i] = error[i] * forget + held * std::abs(off);
        mean[i] += weight * off;
      }
    }
  }

  // Index of the half-life with the least error; on ties the longest one. After a single step there
  // are no errors.
  size_t Best() const {
    size_t best = of_.size() - 1;
    for (size_t i = best; i-- > 0;)
      if (of_[i].Error() < of_[best].Error()) best = i;
    return best;
  }
  const std::vector<float>& mean(size_t i) const { return of_[i].mean; }

 private:
  struct One {
    std::vector<float> mean, error;  // [experts]
    float keep = 0;
    float total = 0;  // sum of weights of the mean, for bias correction in the first steps
    float Error() const { return std::accumulate(error.begin(), error.end(), 0.0f); }
  };
  const int experts_;
  std::vector<One> of_;  // [half-lives]
};

}  // namespace

LoadForecast Forecast(const LoadHistory& history) {
  LoadForecast forecast{history.layers, history.experts, {}, {}};
  for (int layer = 0; layer < history.layers; ++layer) {
    Averages averages(history.experts);
    for (int step = 0; step < history.steps; ++step) averages.Step(history.At(step, layer));
    const size_t best = averages.Best();
    const std::vector<float>& mean = averages.mean(best);
    forecast.load.insert(forecast.load.end(), mean.begin(), mean.end());
    forecast.half_life.push_back(kHalfLives[best]);
  }
  return forecast;
}

std::vector<std::vector<double>> LoadScenarios(const LoadHistory& history, int layer,
                                               std::span<const double> load, int most) {
  const int count = std::min(most, history.steps);
  if (count < 2) return {{load.begin(), load.end()}};
  std::vector<double> sum(load.size(), 0.0);
  for (int step = history.steps - count; step < history.steps; ++step)
    for (size_t e = 0; e < load.size(); ++e) sum[e] += history.At(step, layer)[e];
  std::vector<std::vector<double>> scenarios;
  for (int step = history.steps - count; step < history.steps; ++step) {
    std::vector<double>& scenario = scenarios.emplace_back(load.begin(), load.end());
    for (size_t e = 0; e < load.size(); ++e)
      if (sum[e] > 0) scenario[e] *= history.At(step, layer)[e] * count / sum[e];
  }
  return scenarios;
}

}  // namespace switchyard
