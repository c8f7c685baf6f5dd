// Threads that give way to those of the passes.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

namespace switchyard {

// Of the calling thread, for good: on Linux it has a priority of its own, and with this one it gets
// about a thirtieth of a core that a thread of the pass wants too. Where that is refused it works
// at the priority that it has.
inline void WorkInTheBackground() {
  constexpr int kNice = 15;
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
}

}  // namespace switchyard
