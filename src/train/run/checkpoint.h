// Training checkpoints: weights in Hugging Face layout, plus the state needed to resume.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "train/data/corpus.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/catalog.h"
#include "train/run/step_rule.h"

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
  StepHistory history;      // of the rule for spikes
};

struct CheckpointFiles {
  DType dtype = DType::kBF16;  // format of the weights in model*.safetensors: bf16 or float32
  std::vector<std::filesystem::path> copied;  // config.json, tokenizer files
  // See TrainedModel::Aliases.
  std::vector<std::pair<std::string, const Parameter<float>*>> aliases;
};

// Collective. Writes `dir`. Each tensor is whole and is written by the rank that the catalog
// assigns:
//   model[-i-of-n].safetensors       weights in `dtype`, with LoRA adapters added to them;
//                                    selection biases in float32
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

// A checkpoint that is written in the background, while the run goes on. Collective, like
// SaveCheckpoint: all ranks make the same calls in the same order, on the rank's thread. Files and
// errors are those of SaveCheckpoint.
class CheckpointWrite {
 public:
  // Copies the tensors that this rank writes (12 bytes per parameter) and starts a thread that
  // writes them to the temporary folder. The model may change when the constructor returns.
  // `catalog` is borrowed.
  CheckpointWrite(const std::filesystem::path& dir, const Catalog& catalog, AdamW* optimizer,
                  const TrainerState& state, const CheckpointFiles& files);
  // Without Publish, the checkpoint does not exist, and rank 0 removes the temporary folder.
  ~CheckpointWrite();

  bool written() const;  // whether this rank's thread has ended; does not wait
  // Waits for the threads of all ranks, and renames the folder to `dir`. Call it once.
  void Publish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Fills parameters and moments of this rank by name, whatever the number of ranks and the layout
// that wrote them. Throws Error that names the file and tensor: a missing or corrupt file, a tensor
// that only the model or only the checkpoint has, or a tensor of another shape, which means that
// the checkpoint was written for another config.
TrainerState LoadCheckpoint(const std::filesystem::path& dir, const Catalog& catalog,
                            AdamW* optimizer);

// The LoRA adapters of a checkpoint, by name; empty if it has none. Throws errors of reading its
// files.
struct StoredAdapter {
  std::vector<int64_t> shape;
  std::vector<float> value;
};
std::map<std::string, StoredAdapter> ReadAdapters(const std::filesystem::path& dir);

// The checkpoints of a run: `output`/checkpoint-<step>.
std::filesystem::path CheckpointPath(const std::filesystem::path& output, int64_t step);
// The last complete checkpoint; nullopt if there is none.
std::optional<std::filesystem::path> LatestCheckpoint(const std::filesystem::path& output);
std::optional<int64_t> LatestStep(const std::filesystem::path& output);  // its step
// Removes all but the last `keep` checkpoints (0: keeps all). Called by rank 0 only.
void RemoveOldCheckpoints(const std::filesystem::path& output, int keep);

}  // namespace switchyard::train
