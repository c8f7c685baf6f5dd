// Detects that a rank process hangs.
#pragma once

#include <sys/types.h>

#include <chrono>

#include "comm/host/heartbeat_watch.h"
#include "comm/host/rank_processes.h"

namespace switchyard {

// Watches one child process. Owned by RankProcesses, which kills a process that hangs. Used by the
// watcher's thread; `silence` under the same mutex as Sample.
class HangWatch {
 public:
  // Call it every kHeartbeatSampleTime. `exit`: rank and pid of the process. Returns true once,
  // when the process hangs; `exit` then has the reason, and for how long. Limits: see
  // RankProcesses::Options.
  bool Sample(const SharedArena& arena, const RankProcesses::Options& limits,
              Silence::Clock::time_point now, RankExit* exit);
  // The time since the last heartbeat.
  Silence::Clock::duration silence() const { return silence_.length(); }

 private:
  bool IsStoppedFor(std::chrono::milliseconds limit, pid_t pid, bool beats,
                    Silence::Clock::time_point now);
  bool ComputesWithoutBeat(const SharedArena& arena, std::chrono::milliseconds limit,
                           const RankExit& exit);
  bool LoadIsStuck(const SharedArena& arena, std::chrono::milliseconds limit, int rank,
                   Silence::Clock::time_point now);

  bool reported_ = false;
  double cpu_at_beat_ = 0;  // CPU seconds at the last heartbeat
  Silence::Clock::time_point start_ = Silence::Clock::now();
  Silence silence_{2 * kHeartbeatSampleTime};
  Silence stopped_{2 * kHeartbeatSampleTime};
  Silence load_{2 * kHeartbeatSampleTime};
};

}  // namespace switchyard
