// Hosts for the ranks of one node: child processes, or a thread of this process.
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

// Control connection of the leader. Connects to the front's endpoint.
RankLoopIo LeaderIo(const std::string& endpoint);

class RankHost {
 public:
  // Reports the unexpected end of a rank, on a thread of the host. `cause`: `how` describes the
  // first failure of the engine, and not a consequence of it on another rank.
  using OnExit = std::function<void(const std::string& how, bool cause)>;

  virtual ~RankHost() = default;  // ends ranks that still run
  virtual bool WaitJoined() = 0;  // false if cancelled
  virtual RankSilence LongestSilence() const { return {}; }
  // After this call, a clean exit of a rank is not reported.
  virtual void ExpectEnd() = 0;
  // Waits until all ranks have exited. After the timeout, kills the rest and returns false.
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
                     // Other ranks may notice the end of a killed rank before its parent does.
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
  const bool alone_;  // if false, the first reason known here may be a lost connection
  RankProcesses processes_;
};

// Runs one rank on a thread of this process, for a process that a launcher started as that rank.
// The arena and the connections to the other ranks are destroyed when the thread ends.
class ThreadHost : public RankHost {
 public:
  // `endpoint`: control endpoint of the front for rank 0; empty for other ranks.
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

  std::mutex mutex_;  // guards end_expected_ and ended_
  std::condition_variable changed_;
  bool end_expected_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace switchyard
