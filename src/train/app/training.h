// A training run from its files to its checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "train/app/options.h"
#include "train/app/progress.h"

namespace switchyard::train {

struct TrainingEnd {
  int64_t step = 0;      // taken in all
  bool stopped = false;  // before the last, because `stop` said so
  std::filesystem::path checkpoint;
};

// Reads model, tokenizer and data, starts ranks as threads of this process, goes on from a
// checkpoint as options.resume says, trains, and returns when the last checkpoint is written. In
// options.trainer.output: checkpoint-STEP, log.jsonl. `stop` is asked between steps, by any thread.
// Throws Error for what the user got wrong, before anything is computed wherever it can be known,
// and those of Trainer.
TrainingEnd RunTraining(const TrainingOptions& options, const std::function<bool()>& stop,
                        Progress& progress);

}  // namespace switchyard::train
