// Runs training from input files to checkpoints, prints its schedule, and exports the finished
// model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

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

// Prints the schedule of a run.

// The operations of a step for each pipeline stage (`--print-schedule`), as executed by the ranks
// of a run with these options. Reads only the model's config.json. Throws errors of reading it and
// of CheckLayout.
std::string ScheduleText(const TrainingOptions& options);

// Exports the finished model.

// Writes `output`/final from the run's last checkpoint and returns its path. The directory has one
// model.safetensors, whatever the number of ranks that wrote the checkpoint. It also has
// config.json, generation_config.json, tokenizer and chat template, but no optimizer state. It is
// written under a temporary name and then renamed; an older export is replaced. Throws Error:
// kNotFound if there is no checkpoint; errors of reading the checkpoint; kResource if the folder
// cannot be written.
std::filesystem::path ExportFinal(const std::filesystem::path& output);

}  // namespace switchyard::train
