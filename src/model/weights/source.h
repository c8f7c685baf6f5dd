// Where weights come from: a checkpoint's files, made-up numbers, or nowhere when they are only
// counted.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "model/weights.h"
#include "model/weights/safetensors.h"
#include "model/weights/shard.h"

namespace switchyard {

// A part of a stored matrix [n, k], or of one of a stack [experts, n, k]: stored rows
// row0 + i · row_step for i in `rows`, columns `cols`.
struct MatrixRequest {
  std::string name;
  int64_t n = 0, k = 0;
  Range rows, cols;
  int64_t row0 = 0, row_step = 1;
  int64_t experts = 0, expert = 0;  // experts 0: no stack
  int64_t total_rows = 0;           // `rows` are some of so many; 0: n
  // How config.json says it is stored. A plain tensor of this name is taken as it is all the same:
  // lists of exceptions are not always whole.
  LinearScheme scheme;
  bool mxfp4_blocks = false;  // stored as `name` + "_blocks" and "_scales"
  bool transposed = false;    // stored as [k, n]: the part is copied
  std::string_view keys;      // of config.json that give n and k, for messages
};

// The same of a vector [n] or a stack [experts, n].
struct VectorRequest {
  std::string name;
  int64_t n = 0;
  Range range;
  int64_t offset = 0, step = 1;  // stored elements offset + i · step for i in `range`
  int64_t experts = 0, expert = 0;
  bool norm = false;  // a norm's weight: made-up ones are 1
  std::string_view keys;
};

// Used by one thread. Views stay valid after the source is gone; made-up ones hold their numbers
// only after Finish.
class WeightSource {
 public:
  using Progress = std::function<void(size_t done, size_t total)>;

  virtual ~WeightSource() = default;
  // Whether a tensor of this name is stored: what tells layouts of experts apart.
  virtual bool Has(const std::string& name) const = 0;
  // The part in the format it is stored in, or in the one that its scheme makes of it. An absent
  // tensor gives an undefined view and is reported by Finish, so that one message names them
  // together.
  virtual WeightView Matrix(const MatrixRequest& request) = 0;
  // Writes the part as float32; out has range.size() elements.
  virtual void Vector(const VectorRequest& request, std::span<float> out) = 0;
  // After the last request: Error kNotFound where tensors were absent; else makes the bytes
  // resident.
  virtual void Finish(const Progress& progress) = 0;
};

struct CheckpointSourceOptions {
  bool read_data = true;         // false: headers alone are checked
  bool check_nan_scales = true;  // of the parts requested, and codes that are NaN
  int threads = 1;               // that convert what is not used as it is stored
  bool log = true;               // says which matrices are held in another format
  size_t slab_bytes = 0;         // of the memory that they convert into (Slabs); 0: the default
  // Gets the names of all tensors that were there when they were asked for.
  std::set<std::string, std::less<>>* found = nullptr;
};
// Borrows the checkpoint.
std::unique_ptr<WeightSource> MakeCheckpointSource(const Checkpoint& checkpoint,
                                                   const ModelConfig& config,
                                                   const CheckpointSourceOptions& options);

// Numbers that are a function of tensor name, stored row and column, and seed alone, whatever part
// a rank asks for, in the format config.json implies, of standard deviation near 1 / sqrt(k).
// Filled by `threads` threads in Finish. `slab_bytes` as above.
std::unique_ptr<WeightSource> MakeDummySource(const ModelConfig& config, uint64_t seed, int threads,
                                              size_t slab_bytes = 0);

// Gives views without data; of a GPU's rank in the format that weights have there
// (LoadOptions::placed_as and packs_experts).
std::unique_ptr<WeightSource> MakeCountingSource(const ModelConfig& config,
                                                 std::optional<DType> placed_as = std::nullopt,
                                                 bool packs_experts = false);

// Format of a matrix that config.json implies where no checkpoint says.
WeightFormat ImpliedFormat(const ModelConfig& config, const MatrixRequest& request);
// Columns that share a scale in a kInt4Group matrix with columns `cols` of the request's.
int32_t GroupSizeOf(const LinearScheme& scheme, Range cols);
// Columns that a format keeps together: 32 of MXFP4, a group of int4; 1 where there is no such
// rule.
int64_t ColumnUnit(const LinearScheme& scheme);
WeightFormat PlainFormat(DType dtype);  // of kF32, kBF16 or kF16

// Asks the source for this rank's share, by the names of the config's family. CHECKs that the
// architecture is known; Error where the sizes do not split (CheckSplits).
ModelWeights BuildWeights(const ModelConfig& config, const Mesh& mesh, const LoadOptions& options,
                          WeightSource& source);

}  // namespace switchyard
