// Starting, watching and ending the rank processes of one node.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/device/symmetric_memory.h"
#include "comm/device/tcp/tcp_world.h"
#include "comm/host/node_group.h"

namespace switchyard {

// How a rank process ended.
struct RankExit {
  int rank = -1;
  int code = 0;                  // exit code where signal is 0
  int signal = 0;                // the signal that killed it
  std::string Describe() const;  // "rank 1 (pid 4711) was killed by signal 9 (SIGKILL)"
  int pid = 0;
};

// The ranks of one node as child processes. Each runs this program again (/proc/self/exe) with
// the argument vector {"switchyard", "rank"}, inherits the arena's file descriptor, gets its spec
// (see RankSpec) through an inherited descriptor, and is killed by the kernel when the parent dies.
// It inherits no other descriptor but stdout and stderr.
//
// Ranks ignore SIGINT, SIGTERM and SIGHUP: a terminal sends Ctrl-C to the whole foreground group,
// and a service manager SIGTERM to every process of a service, but it is the front that drains its
// requests and then tells the ranks to end.
//
// Owned by the front; thread-safe, but not to be destroyed from within on_exit.
class RankProcesses {
 public:
  struct Options {
    int world = 1;     // of all nodes
    std::string spec;  // opaque bytes for every rank: the serialized server arguments
    std::string control_endpoint;
    std::optional<NodeNetwork> network;  // none where all ranks are of this node
    std::chrono::milliseconds join_timeout{300'000};
  };
  // Called once per rank that ends without having been asked to, or in another way than with code 0
  // after ExpectEnd, from the watcher's thread. The arena is aborted by then, so that the others
  // stop waiting for that rank. Must not throw.
  using OnExit = std::function<void(const RankExit&)>;

  RankProcesses(std::shared_ptr<SharedArena> arena, Options options, OnExit on_exit);
  ~RankProcesses();  // kills what is left and reaps it

  // Waits until every rank of this node has attached to the arena; Error kTimeout names those that
  // have not, Error kPeer one that ended.
  void WaitJoined();
  // To be called before the ranks are told to end: from now on one that ends with code 0 is no
  // news.
  void ExpectEnd();
  // Asks nothing, waits until all have ended by themselves (they were told through the control
  // socket, after ExpectEnd), kills those that have not by the deadline. Returns true when none had
  // to be killed.
  bool WaitEnded(std::chrono::milliseconds timeout);
  void KillAll();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What a rank process finds when it starts.
struct RankSpec {
  int rank = 0;
  int world = 1;
  std::string spec;
  std::string control_endpoint;
  std::optional<TcpWorld> network;  // none where all ranks are of this node
  std::shared_ptr<SharedArena> arena;
  TcpListener listener;  // for ConnectTcpRanks, where there is a network
};
// In the child, from `switchyard rank`: takes over what the parent left, and asks the kernel to be
// killed with it. Error kInvalid when this process was not started by RankProcesses. Call once, at
// the start of main.
RankSpec InheritRankSpec();
// Sets what `ps` shows: "switchyard::rank TP1 EP1". `argv` are main's, whose memory is overwritten,
// so that its strings are gone; those of the environment are moved. Call before there are threads.
void SetProcessTitle(int argc, char** argv, const std::string& title);

}  // namespace switchyard
