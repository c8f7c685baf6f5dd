// Prints the schedule of a run.
#pragma once

#include <string>

#include "train/app/options.h"

namespace switchyard::train {

// The operations of a step for each pipeline stage (`--print-schedule`), as executed by the ranks
// of a run with these options. Reads only the model's config.json. Throws errors of reading it and
// of CheckLayout.
std::string ScheduleText(const TrainingOptions& options);

}  // namespace switchyard::train
