// The spare processes of a node (RankProcesses::Options::spares).
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "comm/device/symmetric_memory.h"
#include "comm/host/heartbeat_watch.h"
#include "comm/host/rank_processes.h"
#include "comm/net/file_descriptor.h"

namespace switchyard {

// A spare is a process that has started and has loaded what all ranks need. It waits until a rank
// ends, and takes its place. Owned by RankProcesses, whose mutex guards all calls. The watcher's
// thread starts the processes and calls Step.
class SpareProcesses {
 public:
  using Clock = Silence::Clock;
  struct Process {
    int slot = -1;  // SharedArena::kMaxSpares
    pid_t pid = -1;
    FileDescriptor pidfd;
  };

  // Uses the members `spares`, `spare_counts`, `stall_timeout` and `load_timeout` of `options`.
  SpareProcesses(std::shared_ptr<SharedArena> arena, const RankProcesses::Options& options);

  // The slot in which a process is to be started now; nullopt: none. After a spare has failed, the
  // next start waits for a second, then longer each time, up to a minute.
  std::optional<int> SlotToStart(Clock::time_point now) const;
  // Call Add when the process of the slot has started, or StartFailed. The slot was cleared before
  // (SharedArena::ClearSpare).
  void Add(Process process);
  void StartFailed(Clock::time_point now);

  // Adds the descriptors that become readable when a spare ends.
  void AddTo(std::vector<pollfd>* fds) const;
  // Reaps spares that have ended, and kills those that hang: they are stopped, or their load makes
  // no progress. Call it every kHeartbeatSampleTime. Returns true if the last one has ended.
  bool Step(Clock::time_point now);

  // The number of spares that Take can return now.
  int ready() const;
  // Gives the place of `rank` to a spare that has loaded. It is then no spare any more, and the
  // caller reaps it. Nullopt: none has loaded.
  std::optional<Process> Take(int rank);
  // A process has ended that was a spare once.
  void Ended(pid_t pid);

  // Expected ends; Step reaps. Kill: of the spare in this slot.
  void Kill(int slot);
  void KillAll();
  bool empty() const { return spares_.empty(); }
  std::vector<pid_t> pids() const;
  SpareRanks state() const;

 private:
  struct Spare {
    Process process;
    bool retired = false;  // killed on purpose
    bool loaded = false;   // as seen by the last Step
    Clock::time_point start = Clock::now();
    Silence stopped{2 * kHeartbeatSampleTime};
    Silence load{2 * kHeartbeatSampleTime};
  };
  bool Usable(const Spare& spare) const;
  static void Kill(Spare& spare);
  bool Hangs(Spare& spare, Clock::time_point now);
  void Delay(Clock::time_point now);

  const std::shared_ptr<SharedArena> arena_;
  const int wanted_;
  const std::shared_ptr<SpareCounts> counts_;
  const std::chrono::milliseconds stall_timeout_, load_timeout_;
  std::vector<Spare> spares_;   // oldest first
  std::map<int, pid_t> given_;  // processes that have got a place, by slot
  int failures_ = 0;            // failed spares since the last one that has loaded
  Clock::time_point next_start_{};
};

}  // namespace switchyard
