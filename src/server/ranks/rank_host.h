// Hosts for the ranks of one node: child processes, or a thread of this process.
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
#include <vector>

#include "comm/host/heartbeat_watch.h"
#include "comm/host/rank_processes.h"
#include "engine/rank_engine.h"
#include "server/front/rank_spec.h"

namespace switchyard {

// Control connection of the leader. Connects to the front's endpoint. With an empty endpoint, of a
// rank that may become the leader of a later epoch.
RankLoopIo LeaderIo(const std::string& endpoint);

class RankHost {
 public:
  // Reports the unexpected end of a rank, on a thread of the host. `cause`: true if `how` describes
  // the root cause, false if it may be a consequence of the failure of another rank.
  using OnExit = std::function<void(const std::string& how, bool cause)>;

  // How the ranks ended, and what they computed at that time.
  struct Ending {
    std::vector<int> failed;                     // RanksEnd::failed
    bool by_signal = false;                      // a rank was killed by a signal
    std::optional<std::vector<uint64_t>> batch;  // RanksEnd::batch
    std::vector<RankExit> exits;                 // the unexpected ones, in order

    // Sets `failed` and `by_signal` from `exits`. If a rank was killed, the kill is the cause, and
    // ranks that ended by themselves are consequences. If a rank ended by a fault signal, exits of
    // other ranks are consequences. `alone`: the ranks of one node. With several nodes, an exit
    // without a signal may be the consequence of a failure on another node.
    void NameFailed(bool alone);
  };

  virtual ~RankHost() = default;  // ends ranks that still run
  virtual bool WaitJoined() = 0;  // waits until all ranks have joined; false if cancelled
  // The rank with the oldest heartbeat among those whose heartbeats this node receives. Node 0
  // receives heartbeats of all ranks. The other nodes receive heartbeats of their own ranks and of
  // rank 0.
  virtual RankSilence LongestSilence() const = 0;
  // After this call, a clean exit of a rank is not reported.
  virtual void ExpectEnd() = 0;
  // Waits until all ranks have exited. After the timeout, kills the rest and returns false.
  virtual bool WaitEnded(std::chrono::milliseconds timeout) = 0;
  virtual void KillAll() = 0;
  // Called after a rank has ended. Kills the other ranks. EpochHost overrides it to do nothing,
  // because its ranks may continue in the next epoch.
  virtual void EndEpoch() { KillAll(); }
  // Begins a planned restart of `ranks`, whose ends are not reported. If the host has no epochs,
  // the other ranks end too. Call Kill afterwards.
  virtual void Retire(const std::vector<int>& /*ranks*/, const std::string& /*why*/) { KillAll(); }
  // For a node other than node 0, after its ranks have ended (Kill): what node 0 needs to know.
  NodeRanksEnd RanksEndOfNode() const;
  // Kills ranks that still run and waits for their end. Returns false if a rank has not ended by
  // the timeout.
  virtual bool Kill(std::chrono::milliseconds timeout) {
    KillAll();
    WaitEnded(timeout);
    return true;
  }
  virtual Ending HowEnded() const { return {}; }
  // The ranks that the epoch runs without, and whether all of them can join the next epoch.
  virtual std::vector<int> Absent() const { return {}; }
  virtual bool AbsentHaveLoaded() const { return false; }
  virtual SpareRanks Spares() const { return {}; }
  // Call after Kill. Clears the memory that ranks keep for the next epoch in addition to their
  // weights (SharedArena::Kept).
  virtual void ClearKept() {}
  // Marks the ranks as discarded: the server continues without them. So if a killed rank does not
  // end, the destructor waits for it and does not end the process.
  virtual void Discard() {}
};

// Ranks as child processes. If a killed rank does not end, the destructor ends this process without
// it, unless the ranks are discarded.
class ProcessHost : public RankHost {
 public:
  ProcessHost(const std::shared_ptr<SharedArena>& arena, RankProcesses::Options options,
              OnExit on_exit);
  ~ProcessHost() override;

  bool WaitJoined() override { return processes_.WaitJoined(); }
  RankSilence LongestSilence() const override;
  void ExpectEnd() override { processes_.ExpectEnd(); }
  bool WaitEnded(std::chrono::milliseconds timeout) override {
    return processes_.WaitEnded(timeout);
  }
  void KillAll() override { processes_.KillAll(); }
  bool Kill(std::chrono::milliseconds timeout) override { return processes_.Kill(timeout); }
  Ending HowEnded() const override;

  // Members for RankProcesses::Options::epochs. RetireSome calls RankProcesses::Retire, and Settle
  // calls RankProcesses::Settle. Detach stops the reports of exits until BeginEpoch. BeginEpoch
  // starts the ranks that have ended; the others continue with their weights.
  void RetireSome(const std::vector<int>& ranks, const std::string& why) {
    processes_.Retire(ranks, why);
  }
  bool Settle(std::chrono::milliseconds timeout);
  void Detach();
  // `message`: of RankProcesses::BeginEpoch.
  void BeginEpoch(const std::string& endpoint, OnExit on_exit, RankProcesses::RunsWith runs_with,
                  std::string message);
  std::vector<int> Absent() const override { return processes_.Absent(); }
  bool AbsentHaveLoaded() const override { return processes_.AbsentWait(); }
  SpareRanks Spares() const override { return processes_.Spares(); }
  void ClearKept() override {
    arena_->ClearKept();
    processes_.ClearDescriptors();
  }
  void Discard() override { discarded_ = true; }

 private:
  void Report(const std::string& how, bool cause);

  const std::shared_ptr<SharedArena> arena_;
  std::mutex report_mutex_;
  OnExit on_exit_;  // guarded by report_mutex_
  mutable std::mutex mutex_;
  std::vector<RankExit> exits_;  // unexpected exits; guarded by mutex_
  std::atomic<bool> discarded_{false};

  const bool alone_;       // single node, so the first known reason is the root cause
  const bool on_gpus_;     // whether ranks keep memory of GPUs
  HeartbeatWatch others_;  // ranks of other nodes
  RankProcesses processes_;
};

// The ranks of a ProcessHost for one epoch. Kill keeps the processes of ranks that wait for the
// next epoch.
class EpochHost : public RankHost {
 public:
  explicit EpochHost(std::shared_ptr<ProcessHost> ranks) : ranks_(std::move(ranks)) {}
  ~EpochHost() override { ranks_->Detach(); }

  bool WaitJoined() override { return ranks_->WaitJoined(); }
  RankSilence LongestSilence() const override { return ranks_->LongestSilence(); }
  void ExpectEnd() override { ranks_->ExpectEnd(); }
  bool WaitEnded(std::chrono::milliseconds timeout) override { return ranks_->WaitEnded(timeout); }
  void KillAll() override {
    if (!settled_) ranks_->KillAll();
  }
  void EndEpoch() override {}
  void Retire(const std::vector<int>& ranks, const std::string& why) override {
    ranks_->RetireSome(ranks, why);
  }
  bool Kill(std::chrono::milliseconds timeout) override {
    settled_ = true;
    return ranks_->Settle(timeout);
  }
  Ending HowEnded() const override { return ranks_->HowEnded(); }
  std::vector<int> Absent() const override { return ranks_->Absent(); }
  bool AbsentHaveLoaded() const override { return ranks_->AbsentHaveLoaded(); }
  SpareRanks Spares() const override { return ranks_->Spares(); }
  void ClearKept() override { ranks_->ClearKept(); }
  void Discard() override { ranks_->Discard(); }

 private:
  const std::shared_ptr<ProcessHost> ranks_;
  std::atomic<bool> settled_{false};
};

// Runs one rank on a thread of this process. Used if a launcher started this process as that rank.
// The arena and the connections to the other ranks are destroyed when the thread ends. If the rank
// is silent for --watchdog-timeout and does not end after that, the destructor ends the process,
// since a thread cannot be killed.
class ThreadHost : public RankHost {
 public:
  // `endpoint`: control endpoint of the front for rank 0; empty for other ranks.
  ThreadHost(RankJob job, int rank, std::shared_ptr<SharedArena> arena, std::string endpoint,
             OnExit on_exit);
  ~ThreadHost() override;

  bool WaitJoined() override { return true; }
  RankSilence LongestSilence() const override { return watch_.Longest(); }
  void ExpectEnd() override;
  bool WaitEnded(std::chrono::milliseconds timeout) override;
  void KillAll() override;

 private:
  void Run(std::shared_ptr<SharedArena> arena);
  void OnSilent(const RankSilence& silence);
  RankLoopIo Io() const;

  const RankJob job_;
  const int rank_;
  const std::string endpoint_;
  const OnExit on_exit_;
  const std::weak_ptr<SharedArena> arena_;
  std::atomic<bool> killed_{false};

  std::mutex mutex_;  // guards the members down to hung_
  std::condition_variable changed_;
  bool end_expected_ = false;
  bool ended_ = false;
  bool hung_ = false;  // the rank was silent for --watchdog-timeout

  HeartbeatWatch watch_;
  std::thread thread_;  // declared last, because the thread uses the members above
};

// The ranks of other nodes whose heartbeats the node with ranks [first, first + count) receives.
std::vector<int> RanksWatchedFrom(int first, int count, int world);

}  // namespace switchyard
