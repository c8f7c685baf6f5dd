// The ranks of one engine as processes of this host, and the front's line to their leader.
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
#include "comm/host/rank_processes.h"
#include "engine/config.h"
#include "server/front/front.h"

namespace switchyard {

// Owned by `serve`. Construction starts the processes; messages of the leader, and the loss of any
// rank, arrive on a reader thread of this object.
class ProcessRanks : public RankLink {
 public:
  struct Events {
    std::function<void(const EngineMessage&)> on_message;
    std::function<void(const std::string& why)> on_lost;  // once
  };
  ProcessRanks(const EngineConfig& config, const EnginePlan& plan, Events events);
  ~ProcessRanks() override;  // kills what still runs

  void Send(const std::vector<ControlMessage>& messages) override;

  // Waits until the ranks have loaded; `progress` gets the leader's bytes. Error kPeer with the
  // rank's own words when one fails, nothing when `cancelled` becomes true.
  std::optional<RankReady> WaitReady(const std::function<void(const LoadProgress&)>& progress,
                                     const std::atomic<bool>& cancelled);
  // Tells the ranks to leave and waits for it; false when some had to be killed.
  bool Shutdown(std::chrono::milliseconds timeout);

 private:
  void Read();
  void Lost(const std::string& why);

  Events events_;
  std::string endpoint_;
  ControlSocket socket_;
  std::mutex send_mutex_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::optional<RankReady> ready_;
  LoadProgress progress_;
  std::string failure_;  // the leader's own words, where it had some
  std::string exit_;     // how a rank process ended
  bool leaving_ = false;

  std::atomic<bool> stop_{false};
  std::unique_ptr<RankProcesses> processes_;
  std::thread reader_;
};

}  // namespace switchyard
