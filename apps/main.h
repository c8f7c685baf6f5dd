// The program as a library. If your main function calls Main with additional backends, your program
// is the complete Switchyard program.
#pragma once

#include <functional>

namespace switchyard {

struct MoeBackends;

// Runs the sub-command of argv. Exit codes: 0 success, 1 failure at run time, 2 invalid input.
// `extend` adds runners, dispatchers, permutes or fused operators by name to those of this build
// (moe/backends.h); flags then select them. `extend` is called once at the start of every process,
// since ranks are processes that run the same program. Call Main from main(), before any thread
// starts.
int Main(int argc, char** argv, const std::function<void(MoeBackends&)>& extend = {});

}  // namespace switchyard
