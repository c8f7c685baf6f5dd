// Recorded and random loads for planner tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "eplb/array_file.h"
#include "eplb/types.h"

namespace switchyard {

// One layer of recorded routing, 256 experts, top-8: the tensor `name` of
// tests/data/eplb/traces.safetensors, 200 steps. "steady" has a constant distribution, "drift" a
// drifting one, and "shift" changes it after 100 steps.
inline LoadHistory RecordedTrace(const std::string& name) {
  return ReadLoads(ArrayFile(SWITCHYARD_TEST_DATA "/eplb/traces.safetensors"), name);
}

// Loads proportional to e^N(0, skew), the same in all steps, with log-normal noise of 0.1.
inline LoadHistory RandomLoads(int steps, int layers, int experts, double skew, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> mean(static_cast<size_t>(layers) * experts);
  for (double& load : mean) load = 60 * std::exp(skew * normal(random));
  LoadHistory loads{steps, layers, experts, {}};
  for (int step = 0; step < steps; ++step)
    for (const double load : mean)
      loads.counts.push_back(static_cast<int32_t>(load * std::exp(0.1 * normal(random))));
  return loads;
}

inline void ExpectNoneTwice(const Placement& placement, const RankTopology& topology) {
  for (int layer = 0; layer < placement.layers; ++layer)
    for (const RankSlots& slots : LivingSlots(topology, placement.physical)) {
      const auto held = placement.Layer(layer).subspan(slots.begin, slots.size());
      EXPECT_EQ(std::set<int32_t>(held.begin(), held.end()).size(), held.size())
          << "layer " << layer << " rank " << slots.rank;
    }
}

}  // namespace switchyard
