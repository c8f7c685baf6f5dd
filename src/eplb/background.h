// Background threads with lower scheduling priority than the threads of forward passes.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

namespace switchyard {

// Lowers the priority of the calling thread permanently. On Linux each thread has its own nice
// value. With the value set here, a thread gets about 1/30 of a core that it shares with a
// forward-pass thread. If setpriority fails, the thread keeps its current priority.
inline void LowerThreadPriority() {
  constexpr int kNice = 15;
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
}

}  // namespace switchyard
