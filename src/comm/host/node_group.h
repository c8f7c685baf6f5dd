// The nodes (hosts, or ranks that were started one by one) that serve one engine together.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/device/tcp/tcp_world.h"
#include "comm/host/agreement.h"
#include "comm/net/tcp.h"

namespace switchyard {

// How the ranks of one node reach those of the others.
struct NodeNetwork {
  int node = 0;
  TcpWorld world;
  std::vector<TcpListener> listeners;  // of this node's ranks, in their order

  int first_rank() const { return node * world.ranks_per_node; }
};

// One node's membership. Node 0 leads: the others meet it at its address, it compares what they
// state with its own, and hands out the job and the addresses of all ranks. The connections stay,
// and carry the news that ends the engine. Owned by the process that starts the node's ranks.
class NodeGroup {
 public:
  struct Options {
    int nodes = 1;     // --nnodes
    int node = 0;      // --node-rank
    HostPort address;  // --dist-init-addr: an address of node 0 that all nodes reach
    int ranks_per_node = 1;
    Statement statement;                         // what has to be the same on every node
    std::chrono::milliseconds timeout{300'000};  // for all to come
    std::function<bool()> give_up;               // asked ten times a second
  };
  // Waits for the others. Nothing where give_up says so. Error kTimeout names the nodes that did
  // not come, kInvalid what is not the same; every node that was there hears the same words.
  static std::unique_ptr<NodeGroup> Lead(const Options& options, const std::string& job);
  // Waits for node 0, and then for the others.
  static std::unique_ptr<NodeGroup> Join(const Options& options);
  ~NodeGroup();

  const std::string& job() const { return job_; }
  NodeNetwork& network() { return network_; }
  std::string Describe(int node) const;  // "node 1 (10.0.0.2)"

  // Calls come once, from threads of this object, which must not be destroyed from within.
  struct Events {
    // A node is gone, or says that the engine is lost; `why` names it. `cause`: this is what ended
    // it, and not what the end of others may have led to.
    std::function<void(const std::string& why, bool cause)> on_lost;
    std::function<void()> on_end;  // node 0 ends the engine in good order
  };
  void Watch(Events events);
  // From any thread. SayEnd: node 0, before its ranks leave.
  void SayEnd();
  void SayLost(const std::string& why, bool cause);

 private:
  struct Member {
    int node = -1;
    std::string host;
    std::vector<std::string> listeners;  // addresses of its ranks
    TcpStream stream;
    std::thread watcher;
  };
  NodeGroup() = default;

  bool Gather(TcpListener& door, const Options& options);
  void Admit(TcpStream stream, const Options& options);
  std::string Missing(const Options& options) const;
  void TellAll(const std::string& message);
  void Listen(Member& member);
  void Report(const std::string& why, bool cause);

  std::string job_;
  NodeNetwork network_;
  std::string host_;             // this node's address
  std::vector<Member> members_;  // on node 0 all others, elsewhere node 0
  Events events_;

  std::mutex mutex_;     // guards what follows, and sending
  bool ending_ = false;  // connections may close
  bool reported_ = false;
};

}  // namespace switchyard
