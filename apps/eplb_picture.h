// A picture of a simulation.
#pragma once

#include <string>

#include "eplb/simulate.h"

namespace switchyard {

// An SVG document. Heat maps of ranks by steps show the load of the trivial placement and of the
// plans. A curve below shows balancedness over time and marks each plan that moved experts. If
// there are more steps than columns, a column is the mean of several steps. `title` is escaped.
std::string DrawSimulation(const SimulateResult& result, int ranks, const std::string& title);

}  // namespace switchyard
