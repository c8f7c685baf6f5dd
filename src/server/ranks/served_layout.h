// What the ranks serve: the layout and the weights.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/regular_file.h"
#include "engine/request.h"
#include "server/args/args.h"
#include "server/ranks/engine_ranks.h"
#include "server/ranks/launch.h"
#include "server/ranks/membership.h"
#include "server/ranks/rank_host.h"

namespace switchyard {

// The weight files of a node: checks before the ranks start, and changes while they are served.

// Checks the checkpoint's headers, and with --verify-weights its SHA-256 sums. Returns the weight
// files, or an empty list with --load-format dummy. Returns nullopt if `interrupted` returns true;
// several threads call `interrupted` concurrently. Throws Error that names the file.
std::optional<std::vector<FileStamp>> CheckWeights(const ServerArgs& args,
                                                   const std::function<bool()>& interrupted);

// Returns "; FILE has changed: ..." for each changed file; "" if no file has changed.
std::string DescribeChanges(const std::vector<FileStamp>& files);

// Returns a callback that appends the changes of `files` to the reason and passes it to `on_exit`.
// The reason alone may not name the file: a rank that reads past the end of a truncated file is
// killed by SIGBUS.
RankHost::OnExit WithChangedFiles(std::vector<FileStamp> files, RankHost::OnExit on_exit);

// A layout of the ranks that `serve` starts on node 0.

// Data that all layouts of a server share. Outlives the layouts.
struct ServedRanks {
  const Launch& launch;
  RestartOptions restart;
  const std::atomic<bool>& cancelled;  // the start of the server has been cancelled
  OnArena on_arena;                    // of StartRanks; may be empty
};

class ServedLayout : public RankLayout {
 public:
  // `weights`: the weight files, as they were when they were checked. `membership`: the one of the
  // first epoch. `checks`: also check before the first epoch whether the files have changed,
  // because the layout starts later than they were checked.
  ServedLayout(const ServedRanks& served, RankJob job, std::vector<FileStamp> weights,
               Membership membership, bool checks);

  // Error kResource if the weight files have changed.
  std::unique_ptr<EngineRanks> Start(EngineRanks::Events events, std::function<bool()> give_up,
                                     bool may_be_absent) override;
  void Release() override { membership_.ranks.reset(); }
  int groups() const override { return job_.config.mesh.attention_groups(); }
  const RankJob& job() const { return job_; }

 private:
  // The job with the placement of experts at the end of the last epoch.
  RankJob JobOfEpoch() const;
  void Keep(const PlacementChanged& placement);

  const ServedRanks& served_;
  const RankJob job_;
  const std::vector<FileStamp> weights_;
  Membership membership_;
  bool restarts_;             // the next epoch is a restart, so Start checks the weights
  mutable std::mutex mutex_;  // guards location_, which the reader of the ranks sets
  std::string location_;      // RestartOptions::location
};

}  // namespace switchyard
