// Training checkpoints: weights in Hugging Face layout, plus the state needed to resume.
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

// The state of a run between two steps. The data order is a function of seed and position
// (train/data/corpus.h), and a step uses no other random numbers, so there is no further RNG
// state.
struct TrainerState {
  int64_t step = 0;         // steps taken
  SamplePosition position;  // position of the next row
  std::string corpus;       // see Corpus::fingerprint
  int64_t tokens = 0;       // tokens processed so far
  double seconds = 0;       // training time so far
};

struct CheckpointFiles {
  DType dtype = DType::kBF16;  // format of the weights in model*.safetensors: bf16 or float32
  std::vector<std::filesystem::path> copied;  // config.json, tokenizer files
  // See TrainedModel::Aliases.
  std::vector<std::pair<std::string, const Parameter<float>*>> aliases;
};

// Collective. Writes `dir`. Each tensor is whole and is written by the rank that the catalog
// assigns:
//   model[-i-of-n].safetensors       weights in `dtype`; selection biases in float32
//   model.safetensors.index.json     the file of each weight; only if there are several files
//   optimizer[-i-of-n].safetensors   master.NAME, first.NAME, second.NAME in float32: the weights
//                                    and AdamW's moments; only if `optimizer` is given
//   trainer.json                     the state; only if `optimizer` is given
// and copies of the given files. Everything is written to a temporary folder, which is then
// renamed. So `dir` is either complete or absent. An older checkpoint with the same name is
// replaced. Throws Error kResource, on every rank, if a file cannot be written; partial output is
// removed.
void SaveCheckpoint(const std::filesystem::path& dir, const Catalog& catalog, AdamW* optimizer,
                    const TrainerState& state, const CheckpointFiles& files);

// Fills parameters and moments of this rank by name, whatever the number of ranks and the layout
// that wrote them. Throws Error that names the file and tensor: a missing or corrupt file, a tensor
// that only the model or only the checkpoint has, or a tensor of another shape, which means that
// the checkpoint was written for another config.
TrainerState LoadCheckpoint(const std::filesystem::path& dir, const Catalog& catalog,
                            AdamW* optimizer);

// The checkpoints of a run: `output`/checkpoint-<step>.
std::filesystem::path CheckpointPath(const std::filesystem::path& output, int64_t step);
// The last complete checkpoint; nullopt if there is none.
std::optional<std::filesystem::path> LatestCheckpoint(const std::filesystem::path& output);
// Removes all but the last `keep` checkpoints (0: keeps all). Called by rank 0 only.
void RemoveOldCheckpoints(const std::filesystem::path& output, int keep);

}  // namespace switchyard::train
