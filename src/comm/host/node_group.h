// The nodes (hosts, or separately started groups of ranks) that serve one engine together.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/device/tcp/tcp_ranks.h"
#include "comm/host/agreement.h"
#include "comm/net/authenticated_listener.h"
#include "comm/net/tcp.h"

namespace switchyard {

// The network between the ranks of one node and the ranks of other nodes.
struct NodeNetwork {
  int node = 0;
  TcpWorld world;
  std::vector<TcpListener> listeners;  // one for each rank of this node, in order of rank

  int first_rank() const { return node * world.ranks_per_node; }
};

// How the ranks of a node ended. Plain value.
struct NodeRanksEnd {
  // The ranks that ended by themselves or by a signal from outside, in the order of their ends.
  struct Exit {
    int rank = -1;
    int code = 0;    // exit code if signal is 0
    int signal = 0;  // the signal that killed it
  };
  std::vector<Exit> exits;
  // The requests that the node's ranks computed at that time; nullopt: unknown.
  std::optional<std::vector<uint64_t>> batch;

  std::string Encode() const;
  static NodeRanksEnd Decode(std::string_view bytes);  // Error kInvalid
};

// One node's membership. Node 0 leads: the others connect to its address. Node 0 compares their
// statements with its own, and sends them the job and the addresses of all ranks. The connections
// stay open and carry the events that end the engine. Owned by the process that starts the node's
// ranks.
class NodeGroup {
 public:
  struct Options {
    int nodes = 1;     // --nnodes
    int node = 0;      // --node-rank
    HostPort address;  // --dist-init-addr: an address of node 0 that all nodes reach
    int ranks_per_node = 1;
    Statement statement;  // must be equal on every node
    std::string secret;   // the same on all nodes; empty: nodes are not authenticated
    std::chrono::milliseconds timeout{300'000};    // time limit for all nodes to join
    std::chrono::milliseconds connect_timeout{0};  // time limit for node 0 to accept; 0: `timeout`
    std::function<bool()> give_up;  // polled every 100 ms; must not return false after true
    // Set on node 0 if the engine restarts its ranks while requests are open. Node 0 then refuses a
    // node with other flags and continues to wait, instead of throwing an error.
    bool restart = false;
  };
  // Waits for the other nodes. Returns null if give_up returns true. Error kTimeout names the
  // missing nodes, kInvalid names what differs; every node that has joined gets the same error.
  // Other connections, and nodes with another secret, are refused without ending the wait. A node
  // that leaves during the wait may connect again.
  static std::unique_ptr<NodeGroup> Lead(const Options& options, const std::string& job);
  // Waits for node 0, and then for the others. Error kInvalid if node 0 has another secret.
  static std::unique_ptr<NodeGroup> Join(const Options& options);
  ~NodeGroup();

  const std::string& job() const { return job_; }
  NodeNetwork& network() { return network_; }
  std::string Describe(int node) const;  // "node 1 (10.0.0.2)"

  // Each callback is called at most once, from a thread of this object. A callback must not destroy
  // the object.
  struct Events {
    // A node is gone or reports that the engine is lost; `why` names the node. `cause`: whether
    // this is the root cause; false if it may be a consequence of another failure.
    std::function<void(const std::string& why, bool cause)> on_lost;
    std::function<void()> on_end;  // node 0 shuts the engine down
  };
  void Watch(Events events);
  // May be called from any thread. SendEnd: called on node 0, before its ranks leave.
  void SendEnd();
  void SendLost(const std::string& why, bool cause);
  // After a loss, when the ranks of this node have ended: tells node 0 how.
  void SendRanksEnd(const NodeRanksEnd& end);
  // On node 0, after a loss: how the ranks of the other nodes ended. Waits up to `wait` for all
  // nodes whose connection is open; nullopt: a node has not told.
  std::vector<std::optional<NodeRanksEnd>> AwaitRanksEnds(std::chrono::milliseconds wait);
  // On node 0, after the engine has ended: tells nodes that connect again `why`, so that they do
  // not try further. Returns when all other nodes know, or after `wait`. Error kResource if the
  // address is in use.
  static void Dismiss(const Options& options, const std::string& why,
                      std::chrono::milliseconds wait);

 private:
  struct Member {
    int node = -1;
    std::string host;
    std::vector<HostPort> listeners;  // addresses of its ranks
    TcpStream stream;
    std::thread watcher;
    std::optional<NodeRanksEnd> ranks_end;  // guarded by mutex_
    bool closed = false;                    // guarded by mutex_
  };
  NodeGroup() = default;

  bool Gather(TcpListener& door, const Options& options);
  void Admit(AuthenticatedListener::Arrival arrival, const Options& options);
  void RemoveClosed();
  std::string Missing(const Options& options) const;
  void TellAll(const std::string& message);
  void Listen(Member& member);
  void Report(const std::string& why, bool cause);
  void OnClosed(Member& member);
  bool OnRanksEnd(Member& member, std::string_view bytes);

  std::string job_;
  NodeNetwork network_;
  std::string host_;             // this node's address
  std::vector<Member> members_;  // on node 0: all other nodes; elsewhere: node 0
  Events events_;

  std::mutex mutex_;              // guards the members below, and sends
  std::condition_variable told_;  // a member has told how its ranks ended, or has closed
  bool ending_ = false;           // true: closed connections are expected
  bool reported_ = false;
};

}  // namespace switchyard
