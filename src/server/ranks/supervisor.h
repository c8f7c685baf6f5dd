// Restarts the ranks after one of them has ended, and replaces them as planned.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/args/elastic_args.h"
#include "server/ranks/engine_ranks.h"
#include "server/ranks/planned_change.h"

namespace switchyard {

inline constexpr char kShuttingDown[] = "the server is shutting down";

// Owned by `serve` on node 0, for the life of the server. Owns the ranks of the present epoch. If a
// rank ends, a thread of this object pauses the front, ends the epoch of the other ranks, starts
// the next epoch with a new control socket, and resumes the front. If this epoch runs without ranks
// that load, the next one begins when they have loaded. The same thread makes planned changes, once
// no rank is absent. Public members may be called from any thread.
class Supervisor : public RankLink {
 public:
  struct Options {
    bool restarts = false;  // false: the loss of a rank is final
    DeathLimit deaths;      // more ends than this limit are final: the server ends
    // Time limit for killed ranks to end. A rank that is blocked in a driver or a file system may
    // never end; then the loss is final too.
    std::chrono::milliseconds reap_timeout{30'000};
    // Ranks on GPUs. The ranks free the memory of their cache when they get ChangeCache. If they
    // cannot, they end. Ranks that have ended for a release start again when nothing is released
    // any more, because they allocate weights and cache together.
    bool ranks_free_cache = false;
  };
  using OnLost = std::function<void(const std::string& why)>;
  using OnChanged = std::function<void(const ChangeOutcome&)>;

  // Starts the ranks of the first epoch. Throws the errors of RankLayout::Start. `on_lost` is
  // called at most once, when the loss of the ranks is final.
  Supervisor(Options options, Front& front, std::shared_ptr<RankLayout> layout, OnLost on_lost);
  ~Supervisor() override;

  // Drops messages while there are no ranks. After a pause, the front sends open requests and
  // queries again.
  void Send(const std::vector<ControlMessage>& messages) override;
  // Calls EngineRanks::WaitReady of the first epoch.
  std::optional<RankReady> WaitReady(const std::function<void(const LoadProgress&)>& progress,
                                     const std::atomic<bool>& cancelled);
  // Enables restarts, if Options::restarts is true. Before this call, the loss of the ranks is
  // final.
  void Watch();
  // Begins a planned change. `done` is called once, on another thread, when the change has ended;
  // it must not call this object. Returns false, and never calls `done`, if a change is in progress
  // or restarts are off. If the ranks of a new layout fail to load, the present layout continues or
  // is started again.
  bool Begin(PlannedChange change, OnChanged done);
  // Call before a shutdown. A change in progress ends before its next restart of a rank, or before
  // ranks that load beside the present ones serve. From now on, Begin returns false. Ranks that end
  // are still restarted, so that open requests can finish.
  void CancelChange();
  // Calls EngineRanks::Silent. Returns "" while there are no ranks.
  std::string Silent(std::chrono::duration<double> limit) const;
  // Calls EngineRanks::Spares. Returns the last result while there are no ranks.
  SpareRanks Spares() const;
  // Ends the supervision and the ranks. Returns false if some ranks had to be killed. If discarded
  // ranks do not end within the reap timeout, this process exits without waiting for them.
  bool Shutdown(std::chrono::milliseconds timeout);
  bool has_ranks() const;  // false during a restart

 private:
  static constexpr std::chrono::seconds kLogAbsentTime{30};  // between two lines of LogAbsent
  struct Pending {
    PlannedChange change;
    OnChanged done;
  };
  std::unique_ptr<EngineRanks> Start(RankLayout& layout, uint64_t* number,
                                     bool may_be_absent = false);
  void OnEnd(uint64_t number, const RanksEnd& end);
  std::optional<RanksEnd> TakeEnd();
  void Run();
  bool Restart(RanksEnd end);
  bool StartUntilServing(std::optional<RanksEnd> end, bool may_be_absent);
  RankHost::Ending Reap(RanksEnd* end);
  void Delay(int no_output_ends);
  std::unique_ptr<EngineRanks> Detach();
  void Drop() { Detach().reset(); }
  void Discard(std::unique_ptr<EngineRanks> ranks, std::shared_ptr<RankLayout> layout);
  std::optional<RanksEnd> StartAgain(bool may_be_absent = false);
  bool Rejoin(ChangeOutcome* outcome);
  void LogAbsent();
  void Stop();
  // Planned changes (planned_change.cc, memory_change.cc). A bool result is true if ranks serve, or
  // if their memory is released.
  bool Change();
  bool RestartSome(const std::vector<int>& ranks, const std::string& why, ChangeOutcome* outcome);
  bool AwaitAbsent(ChangeOutcome* outcome);
  bool SwitchLayout(const PlannedChange& change, ChangeOutcome* outcome);
  bool SwitchTo(const PlannedChange& change, std::unique_ptr<EngineRanks> loaded, uint64_t number,
                ChangeOutcome* outcome);
  bool DrainRequests(const PlannedChange& change, ChangeOutcome* outcome);
  bool ReleaseMemory(const PlannedChange& change, ChangeOutcome* outcome);
  bool ResumeMemory(const PlannedChange& change, ChangeOutcome* outcome);
  void EndForRelease(std::chrono::steady_clock::time_point start);
  bool ReleaseCache(const PlannedChange& change, ChangeOutcome* outcome);
  bool RestoreCache(ChangeOutcome* outcome);
  std::optional<std::string> ChangeCacheOfRanks(bool release);
  bool StartReleased(ChangeOutcome* outcome);
  // Whether the present ranks have no memory for their cache.
  bool RanksLackCache() const {
    return options_.ranks_free_cache && released_.kv_cache && ranks_ != nullptr;
  }
  void DiscardNew(std::unique_ptr<EngineRanks> ranks, uint64_t number,
                  std::shared_ptr<RankLayout> layout);
  void ResumeFront();
  std::unique_ptr<EngineRanks> LoadBeside(const PlannedChange& change, uint64_t* number,
                                          ChangeOutcome* outcome);
  void WaitForOutput();
  void WaitForDiscarded();
  bool Draining() const;
  void EndChange(const ChangeOutcome& outcome);

  const Options options_;
  Front& front_;
  const OnLost on_lost_;
  RecentDeaths deaths_;  // used by thread_ only

  mutable std::mutex mutex_;  // guards the members down to spares_
  std::condition_variable changed_;
  std::atomic<bool> stopping_{false};
  // Ends the wait for ranks that load beside the present ones. Set if a present rank has ended, or
  // if the server stops or drains.
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> beside_{false};  // new ranks load beside the present ones
  bool draining_ = false;            // set by CancelChange
  bool watching_ = false;            // set by Watch: thread_ handles the ends of ranks
  bool runs_ = false;                // thread_ accepts changes
  std::optional<Pending> pending_;
  uint64_t started_ = 0;        // number of starts of ranks so far; each start has a number
  uint64_t present_ = 0;        // number of the start of ranks_
  uint64_t cache_changes_ = 0;  // number of ChangeCache messages so far
  std::optional<CacheChanged> cache_changed_;  // the last answer
  std::map<uint64_t, RanksEnd> ends_;          // by number of the start; thread_ handles them
  std::shared_ptr<RankLayout> layout_;
  std::unique_ptr<EngineRanks> ranks_;  // null during a restart
  mutable SpareRanks spares_;           // last result of Spares

  // Used by thread_ only. While memory is released, the front stays paused. Without weights there
  // are no ranks. Without a cache there may be ranks.
  MemoryTags released_;
  // Ranks that the present epoch runs without; empty while there are no ranks. Used by thread_
  // only.
  std::vector<int> absent_;
  // Since when ranks are absent, and when LogAbsent is next due. Used by thread_ only.
  std::chrono::steady_clock::time_point absent_since_, log_absent_at_;
  std::vector<std::future<void>> discards_;  // used by thread_, and by Stop after thread_ has ended
  std::thread thread_;
};

}  // namespace switchyard
