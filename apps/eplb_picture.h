// A picture of a simulation.
#pragma once

#include <string>

#include "eplb/simulate.h"

namespace switchyard {

// An SVG document: heat maps of ranks by steps, by the trivial placement and by the plans, and
// below them balancedness over time, each plan that moved something marked. Of many steps several
// share a column. `title` is escaped.
std::string DrawSimulation(const SimulateResult& result, int ranks, const std::string& title);

}  // namespace switchyard
