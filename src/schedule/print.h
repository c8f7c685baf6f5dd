// Prints a schedule as a table (`--print-schedule`).
#pragma once

#include <span>
#include <string>

#include "schedule/plan.h"
#include "schedule/serve.h"

namespace switchyard::schedule {

// One line for each operation: its index, then its description in the column forward or backward
// (one-time operations print under forward), and the all-to-alls in flight while it runs ("3c' 4d":
// the gradient of combine of micro-batch 3, dispatch of micro-batch 4). `list` belongs to `shape`.
std::string PrintSchedule(const StepShape& shape, std::span<const Operation> list);
// The same for a step of serving, with a column for each micro-batch.
std::string PrintSchedule(const ServeShape& shape, std::span<const Operation> list);
// Print the schedule Plan(shape).
std::string PrintSchedule(const StepShape& shape);
std::string PrintSchedule(const ServeShape& shape);

}  // namespace switchyard::schedule
