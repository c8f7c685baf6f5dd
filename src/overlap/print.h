// A list of operations for people to read (`--print-schedule`).
#pragma once

#include <span>
#include <string>

#include "overlap/plan.h"

namespace switchyard::overlap {

// A table with a line for each operation: its number, then what goes forward, or backward, or is
// done once, in a column each, and the exchanges under way while it runs ("3c' 4d": the gradient of
// combine of micro-batch 3, dispatch of micro-batch 4). `list` is of this shape.
std::string PrintSchedule(const StepShape& shape, std::span<const Operation> list);
// Of the planned list.
std::string PrintSchedule(const StepShape& shape);

}  // namespace switchyard::overlap
