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

#include "server/args/death_limit.h"
#include "server/ranks/engine_ranks.h"
#include "server/ranks/planned_change.h"
#include "server/ranks/rank_layout.h"

namespace switchyard {

// Owned by `serve` on node 0, for the life of the server. Owns the ranks of the present epoch. If a
// rank ends, a thread of this object pauses the front, ends the epoch of the other ranks, starts
// the next epoch with a new control socket, and resumes the front. The same thread makes planned
// changes. Public members may be called from any thread.
class Supervisor : public RankLink {
 public:
  struct Options {
    bool restarts = false;  // false: the loss of a rank is final
    DeathLimit deaths;      // beyond this limit, the loss is final
    // How long killed ranks may take to end. One that waits for a driver or a file system may not
    // end at all; this is final too.
    std::chrono::milliseconds reap_timeout{30'000};
  };
  using OnLost = std::function<void(const std::string& why)>;
  using OnChanged = std::function<void(const ChangeOutcome&)>;

  // Starts the ranks of the first epoch. Errors are those of the layout. `on_lost` is called at
  // most once, when the loss of the ranks is final.
  Supervisor(Options options, Front& front, std::shared_ptr<RankLayout> layout, OnLost on_lost);
  ~Supervisor() override;

  // Drops messages while there are no ranks. After a pause, the front sends open requests and
  // queries again.
  void Send(const std::vector<ControlMessage>& messages) override;
  // EngineRanks::WaitReady of the first epoch.
  std::optional<RankReady> WaitReady(const std::function<void(const LoadProgress&)>& progress,
                                     const std::atomic<bool>& cancelled);
  // From now on the ranks are restarted, if that is enabled. Before, their loss is final.
  void Watch();
  // Begins a planned change. `done` is called once, when it has ended, on another thread; it must
  // not call this object. False, without a call, if a change is in progress, or if ranks are not
  // restarted. If the new ranks of another layout fail, the present layout stays, or starts again.
  bool Begin(PlannedChange change, OnChanged done);
  // The server shuts down soon: a change in progress ends before its next restart of a rank, or
  // before its new ranks serve if they load beside the present ones. Begin then returns false.
  // Ranks that end are still restarted, so that open requests can finish.
  void CancelChange();
  // EngineRanks::Silent; empty while there are no ranks.
  std::string Silent(std::chrono::duration<double> limit) const;
  // Ends the supervision and the ranks. False if some had to be killed. If discarded ranks of a
  // change do not end within the reap timeout, this process exits without them.
  bool Shutdown(std::chrono::milliseconds timeout);

 private:
  struct Pending {
    PlannedChange change;
    OnChanged done;
  };
  std::unique_ptr<EngineRanks> Start(RankLayout& layout, uint64_t* number);
  void OnEnd(uint64_t number, const RanksEnd& end);
  std::optional<RanksEnd> TakeEnd();
  void Run();
  bool Restart(RanksEnd end);
  bool StartUntilServing(std::optional<RanksEnd> end);
  RankHost::Ending Reap(RanksEnd* end);
  void Delay(int fruitless);
  std::unique_ptr<EngineRanks> Detach();
  void Drop() { Detach().reset(); }
  void Discard(std::unique_ptr<EngineRanks> ranks, std::shared_ptr<RankLayout> layout);
  std::optional<RanksEnd> StartAgain();
  void Stop();
  // Planned changes (planned_change.cc). Those that return a bool return whether there are ranks.
  bool Change();
  bool RestartSome(const std::vector<int>& ranks, const std::string& why, ChangeOutcome* outcome);
  bool SwitchLayout(const PlannedChange& change, ChangeOutcome* outcome);
  std::unique_ptr<EngineRanks> LoadBeside(const PlannedChange& change, uint64_t* number,
                                          ChangeOutcome* outcome);
  void WaitForOutput();
  void WaitForDiscarded();
  bool Draining() const;
  void EndChange(const ChangeOutcome& outcome);

  const Options options_;
  Front& front_;
  const OnLost on_lost_;
  RecentDeaths deaths_;  // for the thread

  mutable std::mutex mutex_;  // guards the members down to ranks_
  std::condition_variable changed_;
  std::atomic<bool> stopping_{false};
  // Whether the wait for new ranks beside the present ones ends: a present one has ended, or the
  // server stops or drains.
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> beside_{false};  // new ranks load beside the present ones
  bool draining_ = false;            // from CancelChange on
  bool watching_ = false;            // from Watch on, ends are handled by the thread
  bool runs_ = false;                // the thread takes changes
  std::optional<Pending> pending_;
  uint64_t started_ = 0;               // starts of ranks so far, of which each has a number
  uint64_t present_ = 0;               // number of ranks_
  std::map<uint64_t, RanksEnd> ends_;  // to be handled by the thread
  std::shared_ptr<RankLayout> layout_;
  std::unique_ptr<EngineRanks> ranks_;  // null during a restart

  std::vector<std::future<void>> discards_;  // for the thread, then for Stop
  std::thread thread_;
};

}  // namespace switchyard
