// Restarts the ranks after one of them has ended.
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

#include "server/args/death_limit.h"
#include "server/ranks/engine_ranks.h"

namespace switchyard {

// Owned by `serve` on node 0, for the life of the server. Owns the ranks of the present epoch. If a
// rank ends, a thread of this object pauses the front, ends the epoch of the other ranks, starts
// the next epoch with a new control socket, and resumes the front. Public members may be called
// from any thread.
class Supervisor : public RankLink {
 public:
  struct Options {
    bool restarts = false;  // false: the loss of a rank is final
    DeathLimit deaths;      // beyond this limit, the loss is final
    // How long killed ranks may take to end. One that waits for a driver or a file system may not
    // end at all; this is final too.
    std::chrono::milliseconds reap_timeout{30'000};
  };
  // Starts the ranks of an epoch. Polls `give_up` while it waits; null if that returned true. An
  // Error is final.
  using StartEpoch = std::function<std::unique_ptr<EngineRanks>(EngineRanks::Events events,
                                                                std::function<bool()> give_up)>;
  using OnLost = std::function<void(const std::string& why)>;

  // Starts the ranks of the first epoch. Errors are those of `start`. `on_lost` is called at most
  // once, when the loss of the ranks is final.
  Supervisor(Options options, Front& front, StartEpoch start, OnLost on_lost);
  ~Supervisor() override;

  // Drops messages while there are no ranks. After a pause, the front sends open requests and
  // queries again.
  void Send(const std::vector<ControlMessage>& messages) override;
  // EngineRanks::WaitReady of the first epoch.
  std::optional<RankReady> WaitReady(const std::function<void(const LoadProgress&)>& progress,
                                     const std::atomic<bool>& cancelled);
  // From now on the ranks are restarted, if that is enabled. Before, their loss is final.
  void Watch();
  // EngineRanks::Silent; empty while there are no ranks.
  std::string Silent(std::chrono::duration<double> limit) const;
  // Ends the supervision and the ranks. False if some had to be killed.
  bool Shutdown(std::chrono::milliseconds timeout);

 private:
  std::unique_ptr<EngineRanks> Start();
  void OnEnd(const RanksEnd& end);
  void Run();
  bool Restart(RanksEnd end);
  RankHost::Ending Reap(RanksEnd* end);
  void Delay(int fruitless);
  void Drop();
  std::optional<RanksEnd> StartAgain();
  void Stop();

  const Options options_;
  Front& front_;
  const StartEpoch start_;
  const OnLost on_lost_;
  RecentDeaths deaths_;  // for the thread

  mutable std::mutex mutex_;  // guards the members down to ranks_
  std::condition_variable changed_;
  std::atomic<bool> stopping_{false};
  bool watching_ = false;
  std::optional<RanksEnd> end_;         // to be handled by the thread
  std::unique_ptr<EngineRanks> ranks_;  // null during a restart

  std::thread thread_;
};

}  // namespace switchyard
