// The ranks of one engine, and the front's line to their leader.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/host/control_socket.h"
#include "comm/host/node_group.h"
#include "engine/config.h"
#include "server/front/front.h"
#include "server/ranks/rank_host.h"

namespace switchyard {

// Owned by `serve` on node 0. Construction starts this node's ranks; messages of the leader, and
// the loss of any rank or node, arrive on a reader thread of this object.
class EngineRanks : public RankLink {
 public:
  struct Events {
    std::function<void(const EngineMessage&)> on_message;
    std::function<void(const std::string& why)> on_lost;  // once
  };
  // Starts this node's ranks, whose leader connects to the endpoint.
  using StartHost = std::function<std::unique_ptr<RankHost>(const std::string& endpoint,
                                                            RankHost::OnExit on_exit)>;
  // `nodes`: the other nodes, or none.
  EngineRanks(const StartHost& start, std::unique_ptr<NodeGroup> nodes, Events events);
  ~EngineRanks() override;  // kills what still runs

  void Send(const std::vector<ControlMessage>& messages) override;

  // Waits until the ranks have loaded; `progress` gets the leader's bytes. Error kPeer with the
  // rank's own error when one fails, nothing when `cancelled` becomes true.
  std::optional<RankReady> WaitReady(const std::function<void(const LoadProgress&)>& progress,
                                     const std::atomic<bool>& cancelled);
  // "rank 1 (pid 4711) has sent no heartbeat for 25 s", of this node's rank that is silent for
  // longest; empty where none is for `limit`.
  std::string Silent(std::chrono::duration<double> limit) const;
  // Sends the ranks a shutdown message and waits for their end; false when some had to be killed.
  bool Shutdown(std::chrono::milliseconds timeout);

 private:
  void Read();
  void OnExit(const std::string& how, bool cause);
  void Lost();

  Events events_;
  std::string endpoint_;
  ControlSocket socket_;
  std::mutex send_mutex_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::optional<RankReady> ready_;
  LoadProgress progress_;
  std::string failure_;  // the leader's error message, if it sent one
  std::string exit_;     // how a rank or a node ended
  bool exit_is_cause_ = false;
  bool leaving_ = false;

  std::atomic<bool> stop_{false};
  std::unique_ptr<NodeGroup> nodes_;
  std::unique_ptr<RankHost> host_;
  std::thread reader_;
};

}  // namespace switchyard
