// The ranks of an engine as threads of this process, for a front in the same process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/device/symmetric_memory.h"
#include "engine/config.h"
#include "engine/rank_engine.h"
#include "server/front/front.h"

namespace switchyard::offline {

// Owned by offline::Engine. Starts one thread for each rank, a thread that waits for these, and a
// reader thread, which delivers the leader's messages. So detokenization does not delay the leader,
// as in `serve`. Threads of this object receive no signals meant for the process: the program's
// main thread handles them. Unlike rank processes, threads cannot be restarted: the end of a rank
// is final. Send may be called from any thread, the other members from the owner's.
class LocalRanks : public RankLink {
 public:
  // Both run on the reader thread.
  struct Events {
    std::function<void(const EngineMessage&)> on_message;
    // Called once, after the last message, if the ranks end before Stop.
    std::function<void(const std::string& why)> on_lost;
  };

  LocalRanks(const EngineConfig& config, const EnginePlan& plan, Events events);
  ~LocalRanks() override { Stop(); }

  void Send(const std::vector<ControlMessage>& messages) override;
  // Waits until the ranks have loaded; rethrows the error of a rank. Calls `interrupted` about ten
  // times a second. If it returns true, returns false; Stop then ends loading.
  bool WaitReady(const std::function<bool()>& interrupted);
  // Ends the ranks after their present step, or while they load after the present part of the
  // weights, and joins all threads. A second call has no effect.
  void Stop();

 private:
  void Run(const EngineConfig& config, const EnginePlan& plan);
  void Read();
  std::vector<ControlMessage> Receive(std::chrono::milliseconds timeout);
  void Deliver(const EngineMessage& message);

  const Events events_;

  std::mutex inbox_mutex_;
  std::condition_variable arrived_;
  std::vector<ControlMessage> inbox_;  // for the leader

  std::mutex mutex_;                   // guards the members down to stopping_
  std::condition_variable changed_;    // any of them
  std::vector<EngineMessage> outbox_;  // of the leader
  bool ready_ = false, ended_ = false, stopping_ = false;
  std::exception_ptr failure_;
  std::shared_ptr<SharedArena> arena_;  // null before the ranks start and after they have ended

  std::thread ranks_, reader_;  // last: they use the members above
};

}  // namespace switchyard::offline
