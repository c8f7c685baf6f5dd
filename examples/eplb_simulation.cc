// Expert load balancing without a model: plans placements from a synthetic load whose hot experts
// change, replays the following steps, and prints how evenly ranks are loaded.
//
//   build/release/examples/eplb_simulation
#include <cmath>
#include <cstdio>
#include <random>

#include "core/error.h"
#include "eplb/simulate.h"

namespace {

using namespace switchyard;

// Tokens per expert, log-normal over experts with noise of 10 %. Half of the way, other experts
// become hot.
LoadHistory SyntheticLoad(int steps, int layers, int experts) {
  LoadHistory load{steps, layers, experts, {}};
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  std::vector<double> mean(static_cast<size_t>(layers) * experts);
  for (int step = 0; step < steps; ++step) {
    if (step == 0 || step == steps / 2)
      for (double& value : mean) value = 60 * std::exp(normal(random));
    for (const double value : mean)
      load.counts.push_back(static_cast<int32_t>(value * std::exp(0.1 * normal(random))));
  }
  return load;
}

}  // namespace

int main() {
  constexpr int kExperts = 64, kRedundant = 8, kWindow = 20;
  try {
    const LoadHistory load = SyntheticLoad(/*steps=*/120, /*layers=*/4, kExperts);
    std::printf("mean / max rank load, 64 experts in 72 slots of 8 ranks, a plan every 10 steps\n");
    std::printf("%-10s %8s %8s %8s %16s\n", "algorithm", "trivial", "planned", "plans",
                "experts received");
    for (const char* algorithm : {"deepseek", "yard"}) {
      const SimulateResult result = Simulate(load, {.algorithm = ParseEplbAlgorithm(algorithm),
                                                    .topology = {.ranks = 8},
                                                    .physical = kExperts + kRedundant,
                                                    .window = kWindow,
                                                    .every = 10});
      std::printf("%-10s %8.3f %8.3f %8zu %16lld\n", algorithm, result.mean_before(),
                  result.mean_after(), result.plans.size(),
                  static_cast<long long>(result.moves().total()));
    }
  } catch (const Error& e) {
    std::fprintf(stderr, "eplb_simulation: %s\n", e.what());
    return 2;
  }
  return 0;
}
