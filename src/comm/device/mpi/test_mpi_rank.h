// The test program as a rank that mpirun starts.
#pragma once

#include <string_view>

namespace switchyard {

// Plays the part and returns an exit code.
int MpiRankMain(std::string_view part);

}  // namespace switchyard
