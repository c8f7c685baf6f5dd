// What runs the ranks of one node.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "comm/host/rank_processes.h"
#include "engine/rank_engine.h"
#include "server/front/rank_spec.h"

namespace switchyard {

// The leader's end of the control messages: connects to the front's endpoint.
RankLoopIo LeaderIo(const std::string& endpoint);

class RankHost {
 public:
  // How a rank ended that should not have; from a thread of the host. `cause`: `how` names the
  // first failure of the engine, and not only its consequence on another rank.
  using OnExit = std::function<void(const std::string& how, bool cause)>;

  virtual ~RankHost() = default;  // ends what still runs
  virtual bool WaitJoined() = 0;  // false where it was cancelled
  virtual RankSilence LongestSilence() const { return {}; }
  // From now on a rank that ends in good order is no news.
  virtual void ExpectEnd() = 0;
  // Waits until all have ended, by themselves; ends them, and returns false, after the timeout.
  virtual bool WaitEnded(std::chrono::milliseconds timeout) = 0;
  virtual void KillAll() = 0;
};

// Ranks as child processes.
class ProcessHost : public RankHost {
 public:
  ProcessHost(std::shared_ptr<SharedArena> arena, RankProcesses::Options options, OnExit on_exit)
      : alone_(!options.network),
        processes_(std::move(arena), std::move(options),
                   [this, on_exit = std::move(on_exit)](const RankExit& e) {
                     // The other ranks may have noticed the end of a killed one before its parent.
                     const bool killed = e.signal != 0;
                     on_exit(killed || e.reason.empty() ? e.Describe() : e.reason,
                             killed || (alone_ && !e.reason.empty()));
                   }) {}

  bool WaitJoined() override { return processes_.WaitJoined(); }
  RankSilence LongestSilence() const override { return processes_.LongestSilence(); }
  void ExpectEnd() override { processes_.ExpectEnd(); }
  bool WaitEnded(std::chrono::milliseconds timeout) override {
    return processes_.WaitEnded(timeout);
  }
  void KillAll() override { processes_.KillAll(); }

 private:
  const bool alone_;  // else the first reason known here may be a lost connection
  RankProcesses processes_;
};

// One rank on a thread of this process, which a launcher has started as that rank. The arena goes
// with the thread, and with the arena the ways to the other ranks.
class ThreadHost : public RankHost {
 public:
  // `endpoint`: of the front, where this is rank 0.
  ThreadHost(RankJob job, int rank, std::shared_ptr<SharedArena> arena, std::string endpoint,
             OnExit on_exit);
  ~ThreadHost() override;

  bool WaitJoined() override { return true; }
  void ExpectEnd() override;
  bool WaitEnded(std::chrono::milliseconds timeout) override;
  void KillAll() override;

 private:
  void Run(std::shared_ptr<SharedArena> arena);
  RankLoopIo Io() const;

  const RankJob job_;
  const int rank_;
  const std::string endpoint_;
  const OnExit on_exit_;
  const std::weak_ptr<SharedArena> arena_;
  std::atomic<bool> killed_{false};

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool end_expected_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace switchyard
