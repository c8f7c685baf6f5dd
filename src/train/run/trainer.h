// The loop of a training run.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "core/parallel.h"
#include "train/optimizer/schedule.h"
#include "train/run/checkpoint.h"
#include "train/run/trained_model.h"

namespace switchyard::train {

struct TrainerOptions {
  int64_t rows_per_step = 32;  // over all ranks
  int64_t rows_per_pass = 8;   // of one part of the ranks: the size of a micro-batch
  ScheduleOptions schedule;    // its `steps` are those of the run
  AdamWOptions adam;
  double clip = 1.0;                       // of the gradient's norm; 0: none
  int64_t save_every = 0;                  // steps; 0: at the end alone
  int keep = 2;                            // checkpoints; 0: all
  std::chrono::seconds full_disk_wait{0};  // for room for the last checkpoint
  std::filesystem::path output;            // folder of the checkpoints
  CheckpointFiles files;
};

// A step as it is reported.
struct StepReport {
  int64_t step = 0;  // counted from 1
  Losses losses;     // over all ranks
  double rate = 0, gradient_norm = 0;
  int64_t tokens = 0;                     // of this step
  double seconds = 0;                     // it took
  std::map<std::string, double> figures;  // TrainedModel::AfterStep
};

// The ranks of a run as the loop sees them (run/layout.h).
struct TrainerRanks {
  Collectives* all = nullptr;  // null: one rank alone
  Collectives* tp = nullptr;   // that hold pieces of the same tensors; null: nothing is cut
  // Of every step's rows this rank learns from part `part` of `parts` equal ones; ranks of the same
  // part (of a tensor-parallel group, of a pipeline) from the same.
  int part = 0, parts = 1;
};

// Trains a model over ranks. Everything is borrowed. Used by the rank's thread.
class Trainer {
 public:
  // Collective. Throws Error kInvalid for options that are out of range.
  Trainer(TrainedModel& model, Corpus& corpus, const TrainerOptions& options,
          const TrainerRanks& ranks, ThreadPool& pool);
  // Each rank of `all` (null: one alone) has rows of its own.
  Trainer(TrainedModel& model, Corpus& corpus, const TrainerOptions& options, Collectives* all,
          ThreadPool& pool);

  // Goes on from a checkpoint, of any number of ranks. Throws LoadCheckpoint's errors, and kInvalid
  // where it was made from another corpus, or is past the run's last step.
  void Resume(const std::filesystem::path& checkpoint);

  // Steps until the schedule's last, or until `stop` says so on some rank; then saves. Reports
  // every step. A checkpoint on the way that cannot be written is passed to `warn` and tried again
  // at the next time; so is the last one, which is tried again for options.full_disk_wait and then
  // throws. Throws Error kInvalid, on every rank, where loss or
  // gradient is not finite, naming step, tensor and the last good checkpoint; the parameters are
  // then still those of the step before.
  void Run(const std::function<void(const StepReport&)>& report, const std::function<bool()>& stop,
           const std::function<void(const std::string&)>& warn);

  const TrainerState& state() const { return state_; }
  const Catalog& catalog() const { return catalog_; }

 private:
  StepReport Step();
  void Save();
  void SaveLast(const std::function<void(const std::string&)>& warn);
  Losses SumOverRanks(const Losses& mine);
  bool AnyRank(bool mine);

  TrainedModel& model_;
  Corpus& corpus_;
  TrainerOptions options_;
  const TrainerRanks ranks_;
  ThreadPool& pool_;
  Catalog catalog_;
  AdamW adam_;
  TrainerState state_;
  std::optional<int64_t> saved_step_;
};

}  // namespace switchyard::train
