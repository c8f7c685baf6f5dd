#include "comm/host/hang_watch.h"

#include <algorithm>
#include <vector>

#include "comm/host/spawn.h"

namespace switchyard {
namespace {

double Seconds(Silence::Clock::duration length) {
  return std::chrono::duration<double>(length).count();
}

}  // namespace

bool HangWatch::Sample(const SharedArena& arena, const RankProcesses::Options& limits,
                       Silence::Clock::time_point now, RankExit* exit) {
  if (reported_) return false;
  const uint64_t beats = arena.beats(exit->rank);
  silence_.Sample(beats, now);
  const bool is_silent = beats == 0 || silence().count() > 0;
  if (IsStoppedFor(limits.stall_timeout, exit->pid, !is_silent, now)) {
    exit->stopped_seconds = Seconds(stopped_.length());
  } else if (ComputesWithoutBeat(arena, limits.stall_timeout, *exit)) {
    exit->hung_seconds = Seconds(silence());
  } else if (LoadIsStuck(arena, limits.load_timeout, exit->rank, now)) {
    exit->load_stuck_seconds = Seconds(load_.length());
    exit->load_seconds = Seconds(now - start_);
  } else if (limits.watchdog_timeout.count() > 0 && silence() >= limits.watchdog_timeout) {
    exit->silent_seconds = Seconds(silence());
  } else {
    return false;
  }
  return reported_ = true;
}

// Whether the process was stopped (SIGSTOP) for too long. The time without a heartbeat is no
// criterion here, because a rank in a long computation has no heartbeats either.
// ComputesWithoutBeat handles computations: its limit is the time that the step may take.
bool HangWatch::IsStoppedFor(std::chrono::milliseconds limit, pid_t pid, bool beats,
                             Silence::Clock::time_point now) {
  if (limit.count() == 0) return false;
  stopped_.Sample(!beats && IsStopped(pid) ? 1 : 0, now);
  return stopped_.length() >= limit;
}

bool HangWatch::ComputesWithoutBeat(const SharedArena& arena, std::chrono::milliseconds limit,
                                    const RankExit& exit) {
  if (limit.count() == 0) return false;
  if (silence().count() == 0) {
    cpu_at_beat_ = CpuSeconds(exit.pid);
    return false;
  }
  const std::chrono::milliseconds allowed = arena.HeartbeatTimeout(exit.rank);
  if (allowed.count() == 0) return false;  // between two steps
  const std::chrono::duration<double> longest = std::max(limit, allowed);
  return silence() >= longest && CpuSeconds(exit.pid) - cpu_at_beat_ >= longest.count();
}

// Whether a load for which no other rank waits makes no progress: of an absent rank, or of the only
// active rank before it serves. The limit is on the time without progress and not on the whole
// load, because a large checkpoint on a slow disk takes long, and the other ranks use the same
// cores. For other ranks that load, the others wait in a collective, which has a deadline.
bool HangWatch::LoadIsStuck(const SharedArena& arena, std::chrono::milliseconds limit, int rank,
                            Silence::Clock::time_point now) {
  if (limit.count() == 0) return false;
  const bool is_only = arena.world() > 1 && arena.ActiveRanks() == std::vector<int>{rank};
  const bool loads =
      !arena.Waits(rank) && (!arena.Active(rank) || (is_only && arena.beats(rank) == 0));
  load_.Sample(loads ? 1 + arena.load_steps(rank) : 0, now);
  return load_.length() >= limit;
}

}  // namespace switchyard
