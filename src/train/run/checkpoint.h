// A training run on disk: a checkpoint in Hugging Face layout, and beside it what it takes to go
// on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "train/data/corpus.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/catalog.h"

namespace switchyard::train {

// Where a run stands between two steps. The order of the data is a function of seed and position
// (train/data/packing.h), and nothing else in a step is drawn at random: there is no other state of
// random numbers.
struct TrainerState {
  int64_t step = 0;         // steps taken
  SamplePosition position;  // of the next row
  std::string corpus;       // Corpus::fingerprint
  int64_t tokens = 0;       // learned from so far
  double seconds = 0;       // spent on it
};

struct CheckpointFiles {
  DType dtype = DType::kBF16;  // of the weights in model*.safetensors: bf16 or float32
  std::vector<std::filesystem::path> copied;  // config.json, tokenizer files
  std::vector<std::pair<std::string, const Parameter<float>*>> aliases;  // further names of weights
};

// Writes `dir`, collectively: each tensor whole, by the rank that the catalog names, as
//   model[-i-of-n].safetensors, model.safetensors.index.json   weights in `dtype`; what has no
//                                                              gradient in float32
//   optimizer[-i-of-n].safetensors   master.NAME, first.NAME, second.NAME in float32: the weights
//                                    and AdamW's moments; only where `optimizer` is given
//   trainer.json                     the state; as above
// and copies of the named files. All of it is written into a folder aside that then gets the name,
// so that `dir` is whole or not there (an older one of that name is replaced). Throws Error
// kResource, on every rank, where a file cannot be written; nothing is left of it then.
void SaveCheckpoint(const std::filesystem::path& dir, const Catalog& catalog, AdamW* optimizer,
                    const TrainerState& state, const CheckpointFiles& files);

// Fills parameters and moments of this rank by name: however many ranks wrote them, in whichever
// layout. Throws Error that names the file and tensor: a file that is missing or broken,
// tensors that the model lacks, that the checkpoint lacks, or of another shape (a checkpoint of
// another config).
TrainerState LoadCheckpoint(const std::filesystem::path& dir, const Catalog& catalog,
                            AdamW* optimizer);

// The checkpoints of a run: `output`/checkpoint-<step>.
std::filesystem::path CheckpointPath(const std::filesystem::path& output, int64_t step);
// The last one that is whole; nothing where there is none.
std::optional<std::filesystem::path> LatestCheckpoint(const std::filesystem::path& output);
// Removes all but the last `keep` of them (0: keeps all). Rank 0 alone calls it.
void RemoveOldCheckpoints(const std::filesystem::path& output, int keep);

}  // namespace switchyard::train
