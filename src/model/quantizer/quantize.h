// `switchyard quantize`: writes a packed checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "model/quantizer/report.h"
#include "model/quantizer/rules.h"

namespace switchyard {

// The progress of a run. Bytes are bytes of the source tensors.
struct QuantizeProgress {
  size_t shard = 0, shards = 0;  // files finished, and all files
  uint64_t done = 0, total = 0;
  uint64_t kept = 0;  // the part of `done` in files that an earlier run finished
};

struct QuantizeOptions {
  std::filesystem::path from, to;
  QuantizeRules rules;
  uint64_t shard_bytes = 5'000'000'000;  // maximum bytes of a file
  int threads = 1;
  std::function<void(const QuantizeProgress&)> progress;  // called after each batch of tensors
};

// Writes the checkpoint `from`, packed in compressed-tensors' layout, to the directory `to`, which
// is created. Its other files (tokenizer, templates) are copied. quantization_report.json gets the
// report. config.json is written last, so an unfinished directory is not a checkpoint.
//
// quantize_state.json lists the finished files with their SHA-256 sums until the end. If a run is
// killed, the same call continues: it keeps the listed files whose sums are right and writes the
// others. Returns the report of all files. Error
//   - kInvalid: `from` is packed already, or PlanQuantization refuses it; `to` is inside
//     `from`, is not empty without a state, or has the state of other settings or another
//     checkpoint
//   - kResource: too little space, or a file cannot be written. Finished files remain, to continue
//     later; partial ones are removed.
//   - kBusy: another process writes to `to`.
PackingReport QuantizeCheckpoint(const QuantizeOptions& options);

}  // namespace switchyard
