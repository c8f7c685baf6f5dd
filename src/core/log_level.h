// The level of the process logger, while the process runs.
#pragma once

#include <string>

namespace switchyard {

// `level`: debug, info, warning or error; throws Error kInvalid for another value. Any thread may
// call it. Lines of this process only: each rank process has its own logger.
void SetLogLevel(const std::string& level);

}  // namespace switchyard
