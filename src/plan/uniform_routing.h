// The expected load of the most loaded rank of an EP group, if routing is uniform: each token takes
// `top_k` different experts, and all sets of experts are equally likely.
#pragma once

namespace switchyard::plan {

struct ExpertLoad {
  double rows = 0;     // rows of a rank: pairs of a token and one of the rank's experts
  double experts = 0;  // different experts of a rank that have rows
};

class UniformRouting {
 public:
  UniformRouting() : UniformRouting(1, 1, 1) {}
  // `top_k`: experts of a token, at most `experts`; may be a mean. `experts`: physical experts of
  // all ranks; each rank has an equal number.
  UniformRouting(double top_k, double experts, int ranks);

  // The load of a rank on average. `tokens`: of all ranks together.
  ExpertLoad Mean(double tokens) const;
  // The expectation of the largest rows over the ranks, and that of the largest number of different
  // experts. Both are sums over many tokens or experts, so they are taken as normal, with the exact
  // variances and covariances of uniform routing. For equally correlated normal variables the
  // expected maximum is mean + √(variance − covariance) · ExpectedMaximum(ranks).
  ExpertLoad MostLoaded(double tokens) const;

 private:
  // The probability that a token takes none of 1 or 2 given experts.
  double MissesOne() const { return 1 - top_k_ / experts_; }
  double MissesTwo() const;

  double top_k_, experts_;
  int ranks_;
  double maximum_;  // ExpectedMaximum(ranks_)
};

// The expected maximum of n independent standard normal variables, n at least 1 (David and
// Nagaraja, Order Statistics, section 3.1). Error below 1e-4.
double ExpectedMaximum(int n);

}  // namespace switchyard::plan
