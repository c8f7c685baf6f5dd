// The state of RankProcesses, and its watcher's thread. Internal to comm/host.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/host/hang_watch.h"
#include "comm/host/rank_processes.h"
#include "comm/host/spare_processes.h"
#include "comm/net/file_descriptor.h"

namespace switchyard {

// Longest wait for a killed process to end. One that is blocked in a driver or a file system may
// never end.
inline constexpr std::chrono::seconds kReapTime{30};

// Reaps the process `exit.pid`, which has ended, and adds how it ended.
RankExit Reap(RankExit exit);

// A pidfd of the process `pid`. If there is none, kills and reaps the process, and throws Error
// kResource, whose text names the process as `what`.
FileDescriptor OpenPidfd(pid_t pid, const std::string& what);

// The watcher's thread also starts the processes. The kernel sends a child its parent-death signal
// when the thread that forked the child ends. So this thread has to live as long as the object.
struct RankProcesses::Impl {
  struct Child {
    // Before the end: rank and pid, and the reason if it was killed because it hangs.
    RankExit exit;
    FileDescriptor pidfd;
    bool ended = false;     // reaped
    bool reported = false;  // after `ended`: the callback has returned
    bool retired = false;   // killed on purpose: ends, even if WaitForEpoch is still active
    HangWatch hang;

    int rank() const { return exit.rank; }
    pid_t pid() const { return exit.pid; }
  };

  std::shared_ptr<SharedArena> arena;
  Options options;
  OnExit on_exit;

  // Guards the members below. Children are reaped with the mutex held, so that a kill under the
  // mutex cannot hit a reused pid.
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Child> children;        // in order of rank
  std::vector<KeptDescriptors> kept;  // in the same order; empty: none
  std::vector<RankExit> exits;        // exits in this epoch, in the order in which ranks ended
  std::vector<Child> early;           // processes for the next epoch, of ranks that have ended
  bool starts_early = false;          // SpawnEarly is starting a process, which is not in `early`
  bool end_expected = false;
  bool killed = false;      // exits are not reported
  bool all_killed = false;  // by Kill: no process is started any more
  bool closing = false;
  // If set, the watcher's thread begins an epoch and fulfills the promise with the ranks that it
  // has started; nullopt: it has killed ranks instead, and the epoch can begin when they have
  // ended.
  using Started = std::optional<std::vector<int>>;
  std::optional<std::promise<Started>> next_epoch;
  RunsWith runs_with;                    // of the next epoch
  std::string message;                   // of the next epoch
  std::optional<SpareProcesses> spares;  // set with epochs

  FileDescriptor wake;  // an eventfd that ends the watcher's wait
  std::vector<std::string> environment;

  std::jthread watcher;  // the last member, so that it is joined first

  void SpawnAll();
  Child Spawn(int i, uint32_t last_epoch = 0);
  Child Replace(int i);
  pid_t SpawnProcess(const RankSpec& rank_spec, std::vector<int> inherited);
  std::vector<int> SpawnMissing();
  void Wake() const;
  void BeginEpoch();
  void Watch();
  void SampleHeartbeats();
  void OnEnd(size_t child);
  bool Serves() const;  // requires the mutex
  void SpawnEarly(int i);
  std::vector<int> TakeEarly();
  void StepEarly();
  void RetireEarly();  // requires the mutex
  void StepSpares();
  void SpawnSpare(int slot);
  int first_rank() const { return options.network ? options.network->first_rank() : 0; }
  int count() const {
    return options.network ? options.network->world.ranks_per_node : options.world;
  }
  bool RetireLoading();
  void Kill();                // requires the mutex
  void Retire(Child& child);  // requires the mutex
  bool AllEnded() const {
    return std::ranges::all_of(children, &Child::reported) && (!spares || spares->empty()) &&
           early.empty();
  }
};

}  // namespace switchyard
