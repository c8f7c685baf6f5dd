// The ranks of a training run as processes: their start, end and restart.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "comm/host/agreement.h"
#include "comm/host/rank_processes.h"
#include "train/app/options.h"
#include "train/app/step_log.h"
#include "train/app/training.h"
#include "train/hosts/launch.h"

namespace switchyard::train {

// The sub-command of rank processes, an argument of RankProcesses::Options.
inline constexpr const char* kRankCommand = "train-rank";

// The run as this process sees it.
struct FrontOptions {
  TrainingOptions training;
  Launch launch;
  Statement statement;  // flags that must be equal on all nodes
  int max_restarts = 0;
  std::chrono::milliseconds stall_timeout{0};  // RankProcesses::Options::stall_timeout
  // For the ranks of this node to end after the first has failed; then they are killed. A rank
  // notices the failure at its next wait.
  std::chrono::milliseconds end_time{30'000};
  // The spec of rank processes (RankSpec), if they resume as `resume` says (--resume).
  std::function<std::string(const std::string& resume)> spec;
};

// Runs the ranks of this node as child processes until the run ends on all nodes. If `stop` returns
// true, on any node, all ranks end after their step with a checkpoint. Rank 0's process writes the
// log and prints the progress.
//
// A rank that dies, by a signal, by lost connections or without an Error about its input, ends the
// other ranks of all nodes. If fewer than `max_restarts` restarts were made, all ranks are then
// started again and resume from the last checkpoint of the run. A run on several nodes first waits
// for all nodes, up to training.timeout, so a node may be replaced in this time. Otherwise throws
// Error kPeer with the first cause. Errors about the input (kInvalid, of any rank), such as
// different data, and a last checkpoint that cannot be written (SaveError) end the run on all nodes
// without a restart, with kInvalid. `progress` gets one line per restart. If a rank that was killed
// does not end, the process exits with code 1.
void RunRankProcesses(const FrontOptions& options, const std::function<bool()>& stop,
                      Progress& progress);

// Main function of a rank process. Returns its exit code: 0; kInputError for an error kInvalid or a
// SaveError, so that a restart is useless; or 1. The front asks the first rank of its node to stop.
inline constexpr int kInputError = 2;
int RunChildRank(const TrainingOptions& options, RankSpec spec, Progress& progress);

// Runs the single rank of a process that a launcher has started (Launch::Ranks::kThis). The ranks
// are connected over TCP, or over MPI without an address. The error of one rank ends all of them.
TrainingEnd RunLaunchedRank(const FrontOptions& options, const std::function<bool()>& stop,
                            Progress& progress);

}  // namespace switchyard::train
