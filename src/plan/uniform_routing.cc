#include "plan/uniform_routing.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <vector>

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

UniformRouting::UniformRouting(double top_k, double experts, int ranks, double correlation)
    : top_k_(top_k),
      experts_(experts),
      ranks_(ranks),
      correlation_(correlation),
      maximum_(ExpectedMaximum(ranks)) {}

double UniformRouting::MissesTwo() const {
  if (experts_ <= 1) return 0;
  return std::max(0.0, MissesOne() * (experts_ - top_k_ - 1) / (experts_ - 1));
}

double UniformRouting::MissesAll(double misses, const RoutedTokens& tokens) const {
  if (misses <= 0) return tokens.all() > 0 ? 0 : 1;
  if (misses >= 1) return 1;
  // With a smaller correlation, the terms of the product below cancel.
  if (correlation_ < 1e-9 || tokens.of_sequence <= 1) return std::pow(misses, tokens.all());
  // Beta-binomial: the product of (a · misses + i) / (a + i) over the tokens i of a sequence. The
  // correlation of two tokens is 1 / (a + 1).
  const double a = 1 / correlation_ - 1, n = tokens.of_sequence;
  const double log_of_sequence =
      std::lgamma(a * misses + n) - std::lgamma(a * misses) - std::lgamma(a + n) + std::lgamma(a);
  return std::pow(misses, tokens.singles) * std::exp(tokens.sequences * log_of_sequence);
}

ExpertLoad UniformRouting::Mean(const RoutedTokens& tokens) const {
  return {.rows = tokens.all() * top_k_ / ranks_,
          .experts = experts_ / ranks_ * (1 - MissesAll(MissesOne(), tokens))};
}

ExpertLoad UniformRouting::MostLoaded(const RoutedTokens& tokens) const {
  const ExpertLoad mean = Mean(tokens);
  const double all = tokens.all();
  if (ranks_ == 1 || all <= 0) return mean;
  const double of_rank = experts_ / ranks_;
  // A token's rows on a rank are hypergeometric. Their sum over the ranks is constant, so the
  // covariance of two ranks is −variance / (ranks − 1).
  const double share = 1.0 / ranks_;
  const double alike = 1 + std::max(0.0, tokens.of_sequence - 1) * correlation_;
  const double independent = tokens.singles + tokens.sequences * tokens.of_sequence * alike;
  const double variance = independent * top_k_ * share * (1 - share) * (experts_ - top_k_) /
                          std::max(1.0, experts_ - 1);
  const double rows = mean.rows + maximum_ * std::sqrt(variance / (1 - share));
  // That an expert has no rows is a Bernoulli variable. Two of them, of one rank or of two ranks,
  // have the covariance `both`. So variance − covariance is of_rank · (Bernoulli variance − both).
  const double none = MissesAll(MissesOne(), tokens);
  const double both = MissesAll(MissesTwo(), tokens) - none * none;
  const double experts =
      mean.experts + maximum_ * std::sqrt(std::max(0.0, of_rank * (none * (1 - none) - both)));
  const double least = std::min(1.0, all * top_k_);  // one rank has at least a row
  ExpertLoad load;
  load.rows = std::clamp(rows, least, std::max(least, all * std::min(top_k_, of_rank)));
  load.experts = std::clamp(experts, std::min(least, of_rank), std::min(of_rank, load.rows));
  return load;
}

std::array<double, UniformRouting::kParts> UniformRouting::RowsOfExperts(
    const RoutedTokens& tokens) const {
  const double chosen = 1 - MissesOne(), mean = chosen * tokens.all();
  std::array<double, kParts> parts;
  parts.fill(std::max(1.0, mean));
  // probability(j + 1) = probability(j) · ratio(j)
  double none = 0;  // the probability of no rows
  std::function<double(double)> ratio;
  const double a = correlation_ > 0 ? 1 / correlation_ - 1 : 0;
  const bool of_prompts = correlation_ > 0 && tokens.of_sequence > 1 && tokens.sequences > 0;
  if (of_prompts && tokens.singles <= 0 && tokens.sequences <= 1) {
    const double n = std::round(tokens.all()), taken = a * chosen, missed = a * MissesOne();
    none = MissesAll(MissesOne(), {.sequences = 1, .of_sequence = n});
    ratio = [=](double j) {
      return std::max(0.0, n - j) * (taken + j) / ((j + 1) * (missed + std::max(0.0, n - 1 - j)));
    };
  } else {
    const double alike = of_prompts ? 1 + (tokens.of_sequence - 1) * correlation_ : 1;
    const double variance =
        chosen * MissesOne() * (tokens.singles + tokens.sequences * tokens.of_sequence * alike);
    if (variance > 1.001 * mean) {
      const double r = mean * mean / (variance - mean), share = mean / (r + mean);
      none = std::exp(r * std::log(1 - share));
      ratio = [=](double j) { return (j + r) / (j + 1) * share; };
    } else {
      const double n = tokens.all(), odds = chosen / MissesOne();
      none = std::pow(MissesOne(), n);
      ratio = [=](double j) { return std::max(0.0, n - j) / (j + 1) * odds; };
    }
  }
  constexpr double kLeast = 1e-290;  // below: all experts have about the mean
  constexpr int kMostRows = 1 << 16;
  if (none < kLeast || none > 1 - 1e-9 || MissesOne() <= 0) return parts;
  const double part = (1 - none) / kParts;
  double probability = none, room = part, sum = 0;
  int i = 0;
  const auto add_part = [&] {  // not below the one before by rounding
    parts[i] = std::max(i > 0 ? parts[i - 1] : 1.0, sum / (part - room));
    ++i;
  };
  for (int rows = 1; i < kParts && rows <= kMostRows; ++rows) {
    probability *= ratio(rows - 1);
    double left = probability;
    while (i < kParts && left > 0) {
      const double taken = std::min(left, room);
      sum += taken * rows;
      left -= taken;
      room -= taken;
      if (room > 1e-9 * part) break;
      add_part();
      room = part;
      sum = 0;
    }
    // The rest of the distribution is rounding.
    if (probability < 1e-12 * part && rows > mean) break;
  }
  if (i < kParts && room < part) add_part();
  for (; i < kParts; ++i) parts[i] = i > 0 ? parts[i - 1] : std::max(1.0, mean);
  return parts;
}

double TokenCorrelation(std::span<const int32_t> chosen, int64_t layers, int64_t top_k,
                        int64_t experts) {
  const int64_t width = layers * top_k;
  const int64_t tokens = width > 0 ? std::ssize(chosen) / width : 0;
  if (tokens < 2) return 0;
  const auto n = static_cast<double>(tokens);
  double sum = 0, counted = 0;
  std::vector<double> rows(static_cast<size_t>(experts));
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::ranges::fill(rows, 0);
    double all = 0;
    for (int64_t token = 0; token < tokens; ++token)
      for (const int32_t id : chosen.subspan(token * width + layer * top_k, top_k)) {
        if (id < 0 || id >= experts) continue;
        ++rows[static_cast<size_t>(id)];
        ++all;
      }
    const double share = all / n / static_cast<double>(experts);  // of tokens that take an expert
    if (share <= 0 || share >= 1) continue;  // a dense layer, or every token takes every expert
    double squares = 0;
    for (const double of_expert : rows) squares += std::pow(of_expert - n * share, 2);
    const double variance = squares / static_cast<double>(experts);
    sum += (variance / (n * share * (1 - share)) - 1) / (n - 1);
    ++counted;
  }
  return counted > 0 ? std::clamp(sum / counted, 0.0, 0.99) : 0;
}

}  // namespace switchyard::plan
