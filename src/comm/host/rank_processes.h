// Starts, watches and ends the rank processes of one node.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/device/symmetric_memory.h"
#include "comm/device/tcp/tcp_ranks.h"
#include "comm/host/heartbeat_watch.h"
#include "comm/host/kept_descriptors.h"
#include "comm/host/node_group.h"

namespace switchyard {

// Describes how a rank process ended.
struct RankExit {
  int rank = -1;
  int code = 0;    // exit code if signal is 0
  int signal = 0;  // the signal that killed it
  int pid = 0;
  // Seconds without a heartbeat when the watchdog killed the rank; 0: the watchdog did not kill it.
  double silent_seconds = 0;
  // Seconds for which the process had been stopped (SIGSTOP), if it was killed because of that;
  // otherwise 0.
  double stopped_seconds = 0;
  // Seconds for which the rank had computed a step without a heartbeat, if it was killed because of
  // that; otherwise 0.
  double hung_seconds = 0;
  // Seconds for which the rank's load had made no progress, if it was killed because of that, and
  // seconds since its process was started; otherwise 0.
  double load_stuck_seconds = 0, load_seconds = 0;
  // Reason of the abort before this rank ended: its own error, or that of the rank that failed
  // first. Empty if there was no abort.
  std::string reason;
  bool absent = false;  // the epoch ran without this rank, which was loading

  // "rank 1 (pid 4711) was killed by signal 9 (SIGKILL)"
  std::string Describe() const;
  // Whether the rank ended by a fault signal or an exit, so that its own work may be the cause. A
  // SIGKILL comes from outside: from a user, the kernel's out-of-memory killer, or the watchdog. An
  // absent rank computes no requests.
  bool ByItself() const;
  // Whether the process may have overwritten any memory before: it ended by a fault signal, or it
  // exited with an error without an abort before. The latter is the work of a handler of fault
  // signals, such as that of a sanitizer: other errors of a rank abort the arena first.
  bool MayHaveDamaged() const;
};

// Spare processes of a node (RankProcesses::Options::spares). Plain value.
struct SpareRanks {
  int wanted = 0;
  int ready = 0;       // have loaded, and can take the place of a rank
  int loading = 0;     // have started, and load
  int64_t used = 0;    // have taken the place of a rank, as counted by SpareCounts
  int64_t failed = 0;  // have ended before that, as counted by SpareCounts
};
// Counts that outlive a RankProcesses. Thread-safe.
struct SpareCounts {
  std::atomic<int64_t> used{0}, failed{0};
};

// The ranks of one node as child processes. Each runs this program again (/proc/self/exe) with the
// argument vector {"switchyard", Options::command}. A rank inherits only the descriptors of stdout,
// stderr, the arena and its spec (see RankSpec), with several nodes of its listener, and of its
// KeptDescriptors. The kernel kills the rank when the parent dies.
//
// Ranks ignore SIGINT, SIGTERM and SIGHUP. A terminal sends Ctrl-C to the whole foreground group,
// and a service manager sends SIGTERM to every process of a service. But the front must first drain
// its requests and then shut the ranks down.
//
// Owned by the front. Thread-safe, but on_exit must not destroy it.
class RankProcesses {
 public:
  struct Options {
    int world = 1;     // ranks of all nodes
    std::string spec;  // opaque bytes for every rank, such as the serialized server arguments
    std::string command = "rank";  // the sub-command that reads the spec
    std::string control_endpoint;
    std::optional<NodeNetwork> network;  // none if all ranks are on this node
    std::chrono::milliseconds join_timeout{300'000};
    // A rank without a heartbeat for this time is killed; 0: never.
    std::chrono::milliseconds watchdog_timeout{0};
    // A rank whose process is stopped (SIGSTOP) for this time is killed; 0: never. A rank is also
    // killed if it computes a step without a heartbeat for this time and for the time of
    // SymmetricMemory::SetHeartbeatTimeout. In this case the process must also have used this much
    // CPU time, because a rank on a busy machine may only be waiting for a CPU.
    std::chrono::milliseconds stall_timeout{0};
    // An absent rank, or the only active one, is killed if its load makes no progress for this time
    // (SharedArena::CountLoadStep); 0: never.
    std::chrono::milliseconds load_timeout{0};
    std::function<bool()> give_up;  // polled by WaitJoined; may be empty
    // Ranks may wait for the next epoch instead of ending (SharedArena::WaitForEpoch).
    bool epochs = false;
    // With epochs: each rank has KeptDescriptors. They are cleared if the rank ends by a fault
    // signal. The next process of a rank that was killed starts at once, unless a spare has loaded.
    // It can map what the descriptors describe while the other ranks end their epoch
    // (RankSpec::last_epoch).
    bool keeps_descriptors = false;
    // With epochs: the number of further processes that have loaded what all ranks need, and take
    // the places of ranks that end (SharedArena::kMaxSpares). They start when all ranks serve, and
    // are started again after one is used or fails. At most SharedArena::kMaxSpares / 2.
    int spares = 0;
    // A spare that has loaded begins the next epoch with the other ranks, even if `runs_with` would
    // allow an epoch without it.
    bool spares_join = true;
    std::shared_ptr<SpareCounts> spare_counts;  // null: the counts begin with this object
  };
  // Called from the watcher's thread once per rank that ends unexpectedly: before ExpectEnd, or
  // after it with a nonzero exit code. The arena is aborted first, so that other ranks stop waiting
  // for that rank. Must not throw.
  using OnExit = std::function<void(const RankExit&)>;

  RankProcesses(std::shared_ptr<SharedArena> arena, Options options, OnExit on_exit);
  ~RankProcesses();  // kills and reaps the remaining ranks

  // Waits until every active rank of this node has attached to the arena. Error kTimeout names the
  // ranks that have not attached; Error kPeer names a rank that ended. Returns early, with false,
  // when give_up returns true.
  bool WaitJoined();
  // The rank of this node with the longest time since its last heartbeat, and that time.
  RankSilence LongestSilence() const;
  // Call before the ranks are shut down: from now on an exit with code 0 is expected.
  void ExpectEnd();
  // Waits until all ranks have exited by themselves, and kills those that have not by the deadline.
  // Waits up to 30 s for the end of these (Running has those that still have not ended). Call it
  // after ExpectEnd and a shutdown message through the control socket. Returns true if none was
  // killed.
  bool WaitEnded(std::chrono::milliseconds timeout);
  void KillAll();
  // Kills the remaining ranks and waits for their end. False if one has not ended by the timeout.
  bool Kill(std::chrono::milliseconds timeout);
  std::vector<int> Running() const;  // pids of the ranks of this node that have not ended
  // With epochs, after an abort: waits until each active rank has ended or waits for the next
  // epoch. Kills the active ranks that have done neither within `wait`. Returns false if a killed
  // rank has not ended within `end`.
  bool Settle(std::chrono::milliseconds wait, std::chrono::milliseconds end);
  // Ends `ranks` on purpose: aborts the arena with `why`, which ends the epoch of the other ranks,
  // and kills `ranks`. These exits are expected, so OnExit is not called for them. Call Settle
  // next.
  void Retire(const std::vector<int>& ranks, const std::string& why);
  // Call after Settle: begins the next epoch, and starts and returns the ranks that have ended.
  // Clears the kept memory of all ranks if a rank has ended by a fault signal. The ranks that have
  // ended, and those that still load, are absent from the epoch if `runs_with` returns true for the
  // others. Otherwise, and without `runs_with`, all ranks are active. Then ranks that still load
  // are killed and started again, because they would join only at the end of their load. Error
  // kPeer if one of them has not ended after 30 s. `runs_with` is called on another thread, maybe
  // more than once.
  using RunsWith = std::function<bool(const std::vector<int>& ranks)>;
  // `message`: of SharedArena::BeginEpoch. Spares that have loaded take the places of ranks that
  // have ended; these ranks are returned too.
  std::vector<int> BeginEpoch(const std::string& control_endpoint, RunsWith runs_with = {},
                              std::string message = {});
  // Call after Settle: clears the KeptDescriptors of the ranks that have ended.
  void ClearDescriptors();
  // The ranks that the epoch runs without, and whether all of them wait for the next epoch.
  std::vector<int> Absent() const;
  bool AbsentWait() const;
  SpareRanks Spares() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The startup data of a rank process.
struct RankSpec {
  int rank = 0;
  int world = 1;
  std::string spec;
  std::string control_endpoint;
  std::optional<TcpWorld> network;  // none if all ranks are on this node
  std::shared_ptr<SharedArena> arena;
  TcpListener listener;  // argument of ConnectTcpRanks, if there is a network
  // With RankProcesses::Options::keeps_descriptors: of this rank, or of all ranks if the process is
  // a spare.
  std::vector<KeptDescriptors> kept;
  // Slot of a spare, whose rank AwaitPlace of the arena returns; −1: the process is `rank`.
  int spare = -1;
  // Not 0: the process was started in this epoch for the next one. When it has prepared, it waits
  // for the next epoch (SharedArena::WaitForEpoch), which gives the control endpoint.
  uint32_t last_epoch = 0;
};
// In the child, from `switchyard rank`: reads the inherited descriptors and requests a SIGKILL on
// the parent's death. Error kInvalid if RankProcesses did not start this process. Call once, at
// the start of main.
RankSpec InheritRankSpec();
// Sets the title that `ps` shows: "switchyard::rank TP1 EP1". Overwrites the memory of main's
// `argv`, whose strings are lost. Moves the strings of the environment elsewhere. Call before
// starting threads. Returns the memory of the title, for another title of the same process.
std::span<char> SetProcessTitle(int argc, char** argv, const std::string& title);
void SetProcessTitle(std::span<char> memory, const std::string& title);

}  // namespace switchyard
