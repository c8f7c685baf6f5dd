// Balance of expert loads.
#pragma once

#include <map>
#include <span>
#include <string>

#include "comm/device/collectives.h"

namespace switchyard::train {

// Aggregate over a number of MoE layers.
struct Balance {
  double layers = 0.0;
  double sum = 0.0;    // over layers: mean load / largest load, or 1 for a layer without load
  double worst = 1.0;  // minimum over layers
  double dead = 0.0;   // number of experts without a token

  // Adds one layer. loads: [experts] tokens of each expert, summed over all ranks.
  void Add(std::span<const float> loads);
  // Aggregates over the layers of all pipeline stages. Collective over `world`, which has the same
  // number of ranks in each stage. All ranks of a stage must have equal values.
  Balance OfAllStages(Collectives& world, int stages) const;
  // "balancedness", "balancedness_worst", "dead_experts"; empty if there is no MoE layer.
  std::map<std::string, double> Figures() const;
};

}  // namespace switchyard::train
