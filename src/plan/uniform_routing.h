// The expected load of the most loaded rank of an EP group, if all experts are equally popular:
// each token takes `top_k` different experts, and over many sequences all sets of experts are
// equally likely. Tokens of one sequence may choose similar experts.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace switchyard::plan {

struct ExpertLoad {
  double rows = 0;     // rows of a rank: pairs of a token and one of the rank's experts
  double experts = 0;  // different experts of a rank that have rows
};

// The tokens of a step, of all ranks together. Tokens of different sequences are independent.
struct RoutedTokens {
  double singles = 0;      // tokens of decode: each has its own sequence
  double sequences = 0;    // sequences with several tokens: prompts
  double of_sequence = 1;  // tokens of each of these sequences

  double all() const { return singles + sequences * of_sequence; }
};

class UniformRouting {
 public:
  UniformRouting() : UniformRouting(1, 1, 1) {}
  // `top_k`: experts of a token, at most `experts`; may be a mean. `experts`: physical experts of
  // all ranks; each rank has an equal number. `correlation`, at least 0 and below 1: that of the
  // numbers of rows that two tokens of a sequence give to an expert. 0: they are independent.
  UniformRouting(double top_k, double experts, int ranks, double correlation = 0);

  // The load of a rank on average.
  ExpertLoad Mean(const RoutedTokens& tokens) const;
  ExpertLoad Mean(double tokens) const { return Mean(RoutedTokens{.singles = tokens}); }
  // The expectation of the largest rows over the ranks, and that of the largest number of different
  // experts. Both are sums over many tokens or experts, so they are taken as normal, with the exact
  // variances and covariances of uniform routing. For equally correlated normal variables the
  // expected maximum is mean + √(variance − covariance) · ExpectedMaximum(ranks).
  //
  // The n tokens of a sequence have 1 + (n − 1) · correlation times the variance of independent
  // tokens. An expert has none of them with the probability of a beta-binomial variable: each
  // sequence has its own probability of the expert, which is beta distributed (Skellam, 1948,
  // "A probability distribution derived from the binomial distribution ...").
  ExpertLoad MostLoaded(const RoutedTokens& tokens) const;
  ExpertLoad MostLoaded(double tokens) const { return MostLoaded(RoutedTokens{.singles = tokens}); }

  // The numbers of rows of the experts that have rows, ascending: each is the mean of an equal part
  // of them. Rows of a single sequence are beta-binomial, those of several sequences negative
  // binomial, and those of independent tokens binomial.
  static constexpr int kParts = 12;
  std::array<double, kParts> RowsOfExperts(const RoutedTokens& tokens) const;

 private:
  // The probability that a token takes none of 1 or 2 given experts.
  double MissesOne() const { return 1 - top_k_ / experts_; }
  double MissesTwo() const;
  // The probability that no token takes any of some experts, if one token takes none of them with
  // the probability `misses`.
  double MissesAll(double misses, const RoutedTokens& tokens) const;

  double top_k_, experts_;
  int ranks_;
  double correlation_;
  double maximum_;  // ExpectedMaximum(ranks_)
};

// The correlation of UniformRouting in the recorded tokens of one sequence: the mean over layers,
// between 0 and 0.99. `chosen` [tokens, layers, top_k]: ids of experts; negative ones and those
// from `experts` on do not count. 0 with fewer than two tokens.
double TokenCorrelation(std::span<const int32_t> chosen, int64_t layers, int64_t top_k,
                        int64_t experts);

// The expected maximum of n independent standard normal variables, n at least 1 (David and
// Nagaraja, Order Statistics, section 3.1). Error below 1e-4.
double ExpectedMaximum(int n);

}  // namespace switchyard::plan
