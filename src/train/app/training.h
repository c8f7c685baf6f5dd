// Runs training from input files to checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "train/app/options.h"
#include "train/app/progress.h"

namespace switchyard::train {

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

}  // namespace switchyard::train
