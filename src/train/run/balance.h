// How even the loads of experts were.
#pragma once

#include <map>
#include <span>
#include <string>

#include "comm/device/collectives.h"

namespace switchyard::train {

// Of a number of MoE layers together.
struct Balance {
  double layers = 0.0;
  double sum = 0.0;    // over the layers: mean load over largest load, 1 where there was none
  double worst = 1.0;  // the least of them
  double dead = 0.0;   // experts that had no token

  // loads: of each expert of one layer, over all ranks.
  void Add(std::span<const float> loads);
  // Of the layers of all stages of a pipeline. Collective over `world`, all ranks of all stages, as
  // many in each, of which those of a stage have the same.
  Balance OfAllStages(Collectives& world, int stages) const;
  // "balancedness", "balancedness_worst", "dead_experts"; nothing where there is no layer.
  std::map<std::string, double> Figures() const;
};

}  // namespace switchyard::train
