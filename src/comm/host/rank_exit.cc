#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include "comm/host/rank_processes.h"
#include "core/format.h"

namespace switchyard {

// The kernel shows as title the memory in which it stored argv. If the last byte of this memory is
// not zero, the kernel reads on into the environment that follows. So a title may use the memory of
// both, after the strings of the environment are copied elsewhere (as the setproctitle of the BSDs
// does).
std::span<char> SetProcessTitle(int argc, char** argv, const std::string& title) {
  if (argc < 1 || argv[0] == nullptr) return {};
  char* const begin = argv[0];
  char* end = begin;
  const auto extend = [&](char* text) {
    if (text == end) end = text + std::strlen(text) + 1;
  };
  for (int i = 0; i < argc; ++i) extend(argv[i]);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    char* const text = *entry;
    extend(text);
    // Lives as long as the process: getenv returns pointers into it.
    if (text >= begin && text < end) *entry = strdup(text);
  }
  for (int i = 1; i < argc; ++i) argv[i] = end - 1;  // stays zero
  const std::span<char> memory(begin, end);
  SetProcessTitle(memory, title);
  return memory;
}

void SetProcessTitle(std::span<char> memory, const std::string& title) {
  prctl(PR_SET_NAME, title.c_str());
  if (memory.empty()) return;
  const size_t length = std::min(title.size(), memory.size() - 1);
  std::memcpy(memory.data(), title.data(), length);
  std::memset(memory.data() + length, 0, memory.size() - length);
}

bool RankExit::ByItself() const {
  if (absent) return false;
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

bool RankExit::MayHaveDamaged() const {
  if (!ByItself()) return false;
  return signal != 0 || (code != 0 && reason.empty());
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
  if (load_stuck_seconds > 0) {
    return fmt::format(
        "rank {} (pid {}) made no progress for {:.1f} s while it loaded, {:.1f} s after its start, "
        "and was killed (--dist-timeout)",
        rank, pid, load_stuck_seconds, load_seconds);
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
