// The training loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/error.h"
#include "core/parallel.h"
#include "profile/profiler.h"
#include "train/optimizer/schedule.h"
#include "train/run/checkpoint.h"
#include "train/run/learner.h"
#include "train/run/step_rule.h"

namespace switchyard::train {

struct TrainerOptions {
  int64_t rows_per_step = 32;  // rows of a step over all ranks
  int64_t rows_per_pass = 8;   // rows of a micro-batch, in each data-parallel part
  ScheduleOptions schedule;    // its `steps` is the length of the run
  AdamWOptions adam;
  double clip = 1.0;                       // limit of the gradient norm; 0: none
  StepRuleOptions rule;                    // steps whose update is skipped
  int64_t save_every = 0;                  // steps between checkpoints; 0: only at the end
  bool async_save = false;                 // write them in the background (CheckpointWrite)
  int keep = 2;                            // number of checkpoints to keep; 0: all
  std::chrono::seconds full_disk_wait{0};  // time for which saving the last checkpoint is retried
  std::filesystem::path output;            // folder of the checkpoints
  CheckpointFiles files;
  profile::Profiler* profiler = nullptr;  // records the steps of this rank; null: none
};

// Report of one step.
struct StepReport {
  int64_t step = 0;  // counted from 1
  Losses losses;     // over all ranks
  double rate = 0, gradient_norm = 0;
  int64_t tokens = 0;                     // tokens of this step, over all ranks
  double seconds = 0;                     // duration of the step
  std::map<std::string, double> figures;  // results of TrainedModel::AfterStep
  std::string skipped;                    // why the update was skipped; empty: it was applied
};

// The groups of ranks that the training loop communicates with (run/layout.h).
struct TrainerRanks {
  Collectives* all = nullptr;  // null: a single rank
  // Ranks that hold shards of the same tensors; null: tensors are not partitioned.
  Collectives* tp = nullptr;
  // The rows of every step are split into `parts` equal parts, and this rank processes part `part`.
  // All ranks of a tensor-parallel group, and all stages of a pipeline, have the same part, so they
  // process the same rows.
  int part = 0, parts = 1;
  // The ranks with the other shards of this rank's parameters; needed if parameters have shards.
  GradientGroups copies = {};
};

// The last checkpoint cannot be written (kResource), such as on a full disk.
class SaveError : public Error {
 public:
  explicit SaveError(const Error& error) : Error(error) {}
};

// Trains a model over ranks. Everything is borrowed. Used by the rank's thread only.
class Trainer {
 public:
  // Collective. Throws Error kInvalid for options that are out of range.
  Trainer(TrainedModel& model, Corpus& corpus, const TrainerOptions& options,
          const TrainerRanks& ranks, ThreadPool& pool);
  // Each rank of `all` (null: a single rank) has its own rows.
  Trainer(TrainedModel& model, Corpus& corpus, const TrainerOptions& options, Collectives* all,
          ThreadPool& pool);

  // Resumes from a checkpoint of any number of ranks. Throws errors of LoadCheckpoint, and kInvalid
  // if the checkpoint was made from another corpus or is past the run's last step.
  void Resume(const std::filesystem::path& checkpoint);

  // Trains until the last step of the schedule, or until `stop` returns true on any rank. Then
  // saves a checkpoint. Reports every step. If an intermediate checkpoint cannot be written, `warn`
  // is called, and the next save tries again. If the last checkpoint cannot be written, `warn` is
  // called, the write is retried for options.full_disk_wait, and then SaveError is thrown. With
  // async_save, a checkpoint is complete at the end of the first step at which all ranks have
  // written their files, or before the next checkpoint.
  //
  // If a step's update is skipped (options.rule), `warn` is called with the reason. Parameters,
  // moments and selection biases do not change; the step's rows are used up. Throws Error kInvalid,
  // on every rank, if loss or gradient is not finite and the rule does not skip such steps, or if
  // too many steps in a row are skipped. The error names step, reason and the last good checkpoint;
  // the parameters are still those of the previous step.
  void Run(const std::function<void(const StepReport&)>& report, const std::function<bool()>& stop,
           const std::function<void(const std::string&)>& warn);

  const TrainerState& state() const { return state_; }
  const Catalog& catalog() const { return catalog_; }
  // The memory of AdamW's moments on the rank that has most of them, such as "AdamW's moments: at
  // most 3.20 MiB on a rank (12.75 MiB without --zero-stage 1)". Collective.
  std::string MomentsText() const;

 private:
  StepReport Step();
  StepReport RecordedStep();
  void Apply(double norm, StepReport* report);
  void Skip();
  [[noreturn]] void EndRun(const std::string& why);
  void CopyToHost();
  void Save(bool background);
  void Publish();
  void SaveLast(const std::function<void(const std::string&)>& warn);
  Losses SumOverRanks(const Losses& mine);
  uint8_t AnyRank(uint8_t mine);  // bitwise or over the ranks

  TrainedModel& model_;
  Corpus& corpus_;
  TrainerOptions options_;
  const TrainerRanks ranks_;
  ThreadPool& pool_;
  Catalog catalog_;
  AdamW adam_;
  TrainerState state_;
  std::optional<int64_t> saved_step_;
  std::unique_ptr<CheckpointWrite> writing_;  // of step writing_step_; null: none
  int64_t writing_step_ = 0;
};

}  // namespace switchyard::train
