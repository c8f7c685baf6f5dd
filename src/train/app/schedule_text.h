// The order of work of a run, for people to read.
#pragma once

#include <string>

#include "train/app/options.h"

namespace switchyard::train {

// The list of operations of a step, of each pipeline stage (`--print-schedule`): what the ranks of
// a run with these options walk through. Reads the model's config.json alone. Throws Error: what
// reading it throws, and CheckLayout's.
std::string ScheduleText(const TrainingOptions& options);

}  // namespace switchyard::train
