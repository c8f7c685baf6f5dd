// The ranks of an engine in this process, and the changes of their weights and memory.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "server/args/args.h"
#include "server/front/rank_weights.h"
#include "server/offline/local_ranks.h"
#include "server/ranks/new_weights.h"

namespace switchyard::offline {

// Sends to the present ranks, and drops messages while there are none. Thread-safe.
class LocalLink : public RankLink {
 public:
  void Send(const std::vector<ControlMessage>& messages) override;
  void Set(std::shared_ptr<LocalRanks> ranks);

 private:
  std::mutex mutex_;
  std::shared_ptr<LocalRanks> ranks_;
};

// Owned by offline::Engine, which borrows it to the HTTP handlers. A change runs on a thread of
// this object. New ranks replace the old ones, as in `serve` (Supervisor).
class LocalWeights : public RankWeights {
 public:
  LocalWeights(const ServerArgs& args, const EnginePlan& plan, Front& front, LocalLink& link);
  ~LocalWeights() override { Stop(); }

  // Starts the first ranks. Returns as LocalRanks::WaitReady does.
  bool Start(const std::function<bool()>& interrupted);
  // Ends a change in progress, and the ranks. A second call has no effect.
  void Stop();

  WeightsState weights_state() const override;
  bool Update(const WeightUpdate& update, Done done) override;
  bool Release(MemoryTags tags, Done done) override;
  bool Resume(MemoryTags tags, Done done) override;

 private:
  struct Life;
  // Throws the error of ranks that do not load. Returns null if the engine stops, or if
  // `interrupted` returned true.
  std::shared_ptr<LocalRanks> Load(const EngineConfig& config,
                                   const std::function<bool()>& interrupted);
  void Serve(std::shared_ptr<LocalRanks> ranks);
  void Unload();
  void Drain(bool aborts);
  bool HasRoom(const EngineConfig& config) const;
  std::string Placement();
  void LoadAgain(const std::string& why);
  void Switch(const EngineConfig& config, const WeightUpdate& update);
  void ReleaseNow(MemoryTags tags);
  void ResumeNow(MemoryTags tags);
  bool Begin(const std::function<std::function<void()>()>& check, Done done);

  const EnginePlan plan_;
  const CheckpointConfig checkpoint_;
  Front& front_;
  LocalLink& link_;
  std::atomic<bool> stopping_{false};

  mutable std::mutex mutex_;  // guards the members down to released_
  bool changing_ = false;
  EngineConfig config_;  // of the present weights
  MemoryTags released_;

  // Used by the thread of a change, and by Start and Stop.
  std::shared_ptr<LocalRanks> ranks_;
  std::shared_ptr<Life> life_;                        // the state of ranks_
  std::shared_ptr<const OverlayCheckpoint> overlay_;  // of the present weights, or null
  std::mutex thread_mutex_;                           // guards thread_
  std::thread thread_;
};

}  // namespace switchyard::offline
