// Prints a schedule as a table (`--print-schedule`).
#pragma once

#include <span>
#include <string>

#include "schedule/plan.h"
#include "schedule/serve.h"

namespace switchyard::schedule {

// One line for each operation: its index, its description in the column forward or backward, and
// the all-to-alls in flight while it runs. "3c' 4d" stands for the gradient of combine of
// micro-batch 3 and dispatch of micro-batch 4. Operations that occur once per step are in the
// column forward. `list` must be a schedule of `shape`.
std::string PrintSchedule(const StepShape& shape, std::span<const Operation> list);
// Prints the schedule of a step of serving as a table that has a column for each micro-batch.
std::string PrintSchedule(const ServeShape& shape, std::span<const Operation> list);
// These functions print the schedule Plan(shape).
std::string PrintSchedule(const StepShape& shape);
std::string PrintSchedule(const ServeShape& shape);

}  // namespace switchyard::schedule
