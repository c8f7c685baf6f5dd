// The test program in the role of a rank started by mpirun.
#pragma once

#include <string_view>

namespace switchyard {

// Runs the named part of the test and returns an exit code.
int MpiRankMain(std::string_view part);

}  // namespace switchyard
