// The program as a library: a main of one's own that is all of Switchyard, with backends of one's
// own.
#pragma once

#include <functional>

namespace switchyard {

struct MoeBackends;

// Runs the sub-command that argv names. Exit codes: 0 done, 1 failed while running, 2 wrong input.
// `extend` adds runners, dispatchers, permutes or fused operators by name to those of this build
// (moe/backends.h); flags then choose them. It is called once at the start of every process: ranks
// are processes that run this program again. Call from main, before there are threads.
int Main(int argc, char** argv, const std::function<void(MoeBackends&)>& extend = {});

}  // namespace switchyard
