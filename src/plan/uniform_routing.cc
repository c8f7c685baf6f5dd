#include "plan/uniform_routing.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace switchyard::plan {

// E[max] = ∫ over x > 0 of 1 − Φ(x)^n − Φ(−x)^n, because P(max ≤ x) = Φ(x)^n.
double ExpectedMaximum(int n) {
  if (n <= 1) return 0;
  constexpr double kStep = 1.0 / 64, kEnd = 8;
  double sum = 0;
  for (double x = kStep / 2; x < kEnd; x += kStep) {
    const double below = 0.5 * std::erfc(-x / std::numbers::sqrt2);
    sum += 1 - std::pow(below, n) - std::pow(1 - below, n);
  }
  return sum * kStep;
}

UniformRouting::UniformRouting(double top_k, double experts, int ranks)
    : top_k_(top_k), experts_(experts), ranks_(ranks), maximum_(ExpectedMaximum(ranks)) {}

double UniformRouting::MissesTwo() const {
  if (experts_ <= 1) return 0;
  return std::max(0.0, MissesOne() * (experts_ - top_k_ - 1) / (experts_ - 1));
}

ExpertLoad UniformRouting::Mean(double tokens) const {
  return {.rows = tokens * top_k_ / ranks_,
          .experts = experts_ / ranks_ * (1 - std::pow(MissesOne(), tokens))};
}

ExpertLoad UniformRouting::MostLoaded(double tokens) const {
  const ExpertLoad mean = Mean(tokens);
  if (ranks_ == 1 || tokens <= 0) return mean;
  const double of_rank = experts_ / ranks_;
  // A token's rows on a rank are hypergeometric. Their sum over the ranks is constant, so the
  // covariance of two ranks is −variance / (ranks − 1).
  const double share = 1.0 / ranks_;
  const double variance =
      tokens * top_k_ * share * (1 - share) * (experts_ - top_k_) / std::max(1.0, experts_ - 1);
  const double rows = mean.rows + maximum_ * std::sqrt(variance / (1 - share));
  // That an expert has no rows is a Bernoulli variable. Two of them, of one rank or of two ranks,
  // have the covariance `both`. So variance − covariance is of_rank · (Bernoulli variance − both).
  const double none = std::pow(MissesOne(), tokens);
  const double both = std::pow(MissesTwo(), tokens) - none * none;
  const double experts =
      mean.experts + maximum_ * std::sqrt(std::max(0.0, of_rank * (none * (1 - none) - both)));
  const double least = std::min(1.0, tokens * top_k_);  // one rank has at least a row
  ExpertLoad load;
  load.rows = std::clamp(rows, least, std::max(least, tokens * std::min(top_k_, of_rank)));
  load.experts = std::clamp(experts, std::min(least, of_rank), std::min(of_rank, load.rows));
  return load;
}

}  // namespace switchyard::plan
