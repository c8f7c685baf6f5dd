// Runs training from input files to checkpoints, prints its schedule, and exports the finished
// model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "comm/device/symmetric_memory.h"
#include "train/app/options.h"
#include "train/app/step_log.h"

namespace switchyard::train {

// Runs training from input files to checkpoints.

struct TrainingEnd {
  int64_t step = 0;      // total steps taken
  bool stopped = false;  // ended early by `stop`
  std::filesystem::path checkpoint;
};

// Reads model, tokenizer and data, starts ranks as threads of this process, resumes from a
// checkpoint according to options.resume, and trains. Returns when the last checkpoint is written.
// options.trainer.output receives checkpoint-STEP and log.jsonl. `stop` is polled between steps, by
// the thread of any rank. Throws Error for invalid input, before any computation where possible,
// and errors of Trainer.
TrainingEnd RunTraining(const TrainingOptions& options, const std::function<bool()>& stop,
                        Progress& progress);

// Runs whose ranks are processes. Each process has one rank.

// Checks the options as far as possible without reading the data, and writes the run's files other
// than weights (PrepareModelFiles). Called once per run, before the ranks of any host start. Throws
// errors as RunTraining does. Returns the layout.
Layout PrepareRun(const TrainingOptions& options);

// Bytes of each rank in the arena of the run's ranks. Reads only the model's config.json.
size_t ArenaBytesPerRank(const TrainingOptions& options);

// Main function of rank `rank`, after PrepareRun. `arena` has options.layout.ranks() ranks, to
// which this one is connected. All ranks resume from the checkpoint that rank 0 has found. Rank 0
// alone writes the log and `progress`. Throws what RunTraining throws; the caller aborts the arena.
// An error of the training loop aborts the arena before anything else.
// Throws kInvalid if the ranks have read different data. Errors of other ranks, and waits that
// exceed options.timeout, are thrown as kPeer and kTimeout and name the rank.
TrainingEnd RunTrainingRank(const TrainingOptions& options, int rank,
                            const std::shared_ptr<SharedArena>& arena,
                            const std::function<bool()>& stop, Progress& progress);

// The last checkpoint of the run, after its ranks have ended. Throws NotFound if there is none.
TrainingEnd EndOfRun(const TrainingOptions& options);

// Prints the schedule of a run.

// The operations of a step for each pipeline stage (`--print-schedule`), as executed by the ranks
// of a run with these options. Reads only the model's config.json. Throws errors of reading it and
// of CheckLayout.
std::string ScheduleText(const TrainingOptions& options);

// Exports the finished model.

// Writes `output`/final from the run's last checkpoint and returns its path. The directory has one
// model.safetensors, whatever the number of ranks that wrote the checkpoint. It also has
// config.json, generation_config.json, tokenizer and chat template, but no optimizer state. It is
// written under a temporary name and then renamed; an older export is replaced. If the run trains
// LoRA adapters, the model includes them, and `output`/adapter has them in PEFT's layout:
// adapter_model.safetensors in float32 and adapter_config.json. Throws Error:
// kNotFound if there is no checkpoint; errors of reading the checkpoint; kResource if the folder
// cannot be written.
std::filesystem::path ExportFinal(const std::filesystem::path& output);

}  // namespace switchyard::train
