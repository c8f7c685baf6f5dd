#include <signal.h>
#include <string.h>

#include "comm/host/rank_processes.h"
#include "core/format.h"

namespace switchyard {

bool RankExit::ByItself() const {
  switch (signal) {
    case 0:
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
    case SIGABRT:
    case SIGTRAP:
    case SIGSYS:
      return true;
    default:
      return false;
  }
}

std::string RankExit::Describe() const {
  if (stopped_seconds > 0) {
    return fmt::format(
        "rank {} (pid {}) was stopped for {:.1f} s and was killed "
        "(--rank-stall-timeout)",
        rank, pid, stopped_seconds);
  }
  if (hung_seconds > 0) {
    return fmt::format(
        "rank {} (pid {}) computed a step for {:.1f} s without a heartbeat and was killed "
        "(--rank-stall-timeout)",
        rank, pid, hung_seconds);
  }
  if (silent_seconds > 0) {
    return fmt::format(
        "rank {} (pid {}) sent no heartbeat for {:.0f} s and was killed (--watchdog-timeout)", rank,
        pid, silent_seconds);
  }
  if (signal == 0) return fmt::format("rank {} (pid {}) ended with exit code {}", rank, pid, code);
  const char* name = sigabbrev_np(signal);
  return fmt::format("rank {} (pid {}) was killed by signal {} (SIG{})", rank, pid, signal,
                     name != nullptr ? name : "?");
}

}  // namespace switchyard
