// Sources of weights: a checkpoint's files, generated numbers, or none if bytes are only
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
#include "model/weight_bytes.h"
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
  int64_t total_rows = 0;           // rows of the request before sharding; 0: n
  // The stored row of each row of the request, of which `rows` is a part; empty: row i is row i.
  // Valid until Finish. Only for heads (ReducedHead), whose rows are copied.
  std::span<const int32_t> picked;
  bool of_owner = false;  // stored in the checkpoint of ReducedHead::owner
  // The storage scheme by config.json. A tensor that is stored plain is read as plain nevertheless:
  // ignore lists are sometimes incomplete.
  LinearScheme scheme;
  bool float32 = false;       // plain weights are float32, whatever ModelConfig::dtype is
  bool mxfp4_blocks = false;  // stored as `name` + "_blocks" and "_scales"
  bool transposed = false;    // stored as [k, n]: the part is copied
  std::string_view keys;      // keys of config.json that give n and k, for messages

  // Where row `row` of the request is stored.
  int64_t StoredRow(int64_t row) const {
    return row0 + (picked.empty() ? row : picked[static_cast<size_t>(row)]) * row_step;
  }
};

// A part of a vector [n] or of a stack [experts, n].
struct VectorRequest {
  std::string name;
  int64_t n = 0;
  Range range;
  int64_t offset = 0, step = 1;  // stored elements offset + i · step for i in `range`
  int64_t experts = 0, expert = 0;
  int64_t kernel = 0;  // stored as [n / kernel, 1, kernel], as a convolution of each channel
  // Positive scales. They may be stored as one element for all, or with further dimensions of 1.
  // Others are an error kInvalid.
  bool scales = false;
  bool of_heads = false;  // stored as [1, 1, n, 1], to broadcast to [batch, rows, heads, elements]
  int64_t columns = 0;    // stored as [n / columns, columns]
  // Stored as integers in [0, below), different ones in each row of `columns`; 0: stored as floats.
  // At most 2^24, so they are exact in float32. Other integers are an error kInvalid.
  int64_t below = 0;
  bool norm = false;      // a norm's weight; dummy weights of norms are 1
  bool of_owner = false;  // stored in the checkpoint of ReducedHead::owner
  std::string_view keys;
};

// Used by one thread. Views stay valid after the source is destroyed. Views of generated weights
// hold their numbers only after Finish.
class WeightSource {
 public:
  using Progress = std::function<void(size_t done, size_t total)>;

  virtual ~WeightSource() = default;
  // Whether a tensor of this name is stored. Callers use it to distinguish layouts of experts.
  virtual bool Has(const std::string& name) const = 0;
  // The part in its stored format, or in the format that its scheme converts it to. A missing
  // tensor gives an undefined view and is reported by Finish, so that one message lists all of
  // them.
  virtual WeightView Matrix(const MatrixRequest& request) = 0;
  // Writes the part as float32; out has range.size() elements.
  virtual void Vector(const VectorRequest& request, std::span<float> out) = 0;
  // Call after the last request. Error kNotFound if tensors were missing; else makes the bytes
  // resident.
  virtual void Finish(const Progress& progress) = 0;
};

struct CheckpointSourceOptions {
  bool read_data = true;         // false: only headers are checked
  bool check_nan_scales = true;  // rejects NaN scales and codes in requested parts
  int threads = 1;               // threads that convert
  bool log = true;               // logs which matrices are held in another format
  size_t slab_bytes = 0;  // slab size of the memory for converted matrices (Slabs); 0: the default
  // Receives the names of all requested tensors that exist.
  std::set<std::string, std::less<>>* found = nullptr;
};
// Borrows the checkpoint.
std::unique_ptr<WeightSource> MakeCheckpointSource(const Checkpoint& checkpoint,
                                                   const ModelConfig& config,
                                                   const CheckpointSourceOptions& options);

// Generates numbers that depend only on the tensor name, the stored row and column, and the seed.
// They do not depend on the part that a rank requests. The numbers have the format that config.json
// implies and a standard deviation near 1 / sqrt(k). Filled by `threads` threads in Finish.
// `slab_bytes`: see CheckpointSourceOptions.
std::unique_ptr<WeightSource> MakeDummySource(const ModelConfig& config, uint64_t seed, int threads,
                                              size_t slab_bytes = 0);

// Returns views without data. For a rank on a GPU they have the format of weights on the GPU
// (LoadOptions::gpu_plain_dtype and packs_experts).
std::unique_ptr<WeightSource> MakeCountingSource(
    const ModelConfig& config, std::optional<DType> gpu_plain_dtype = std::nullopt,
    bool packs_experts = false);

// The format of a matrix in memory that config.json implies, without a checkpoint. Matrices that
// loaders pack are panels (quant/panels.h) if their rows are int8 and their columns begin at a
// block of a panel. For int4 checkpoints these are kInt4Panels or kInt4ZeroPanels; if the file has
// float16 scales, the loaded matrix has the format of the same size with such scales.
WeightFormat ImpliedFormat(const ModelConfig& config, const MatrixRequest& request);
// Whether a safetensors checkpoint stores matrices in 4 bits that can be packed into panels, and
// whether they are packed, so that each rank has its own copy of them.
bool MayPackStoredWeights(const QuantizationConfig& quantization);
bool PacksStoredWeights(const QuantizationConfig& quantization);
// The number of columns that share a scale, in columns `cols` of a matrix in kInt4Group or its
// panels.
int32_t GroupSizeOf(const LinearScheme& scheme, Range cols);
// Number of adjacent columns that must stay on one rank: 32 for MXFP4 and Q8_0, the group size for
// int4, 128 for the K types of ggml, else 1.
int64_t ColumnUnit(const LinearScheme& scheme);
WeightFormat PlainFormat(DType dtype);  // for kF32, kBF16 or kF16

// The source of `config`, made by `make`. If config.reduced_head has an owner, requests of the
// owner's tensors go to a second source, made for the owner.
std::unique_ptr<WeightSource> WithOwnerOfHead(
    const ModelConfig& config,
    const std::function<std::unique_ptr<WeightSource>(const ModelConfig&)>& make);

// Requests this rank's shard from the source, by the tensor names of the config's family. CHECKs
// that the architecture is known; Error if the sizes cannot be sharded (CheckSplits). Adds to
// *by_module the bytes of each module, unless it is null.
ModelWeights BuildWeights(const ModelConfig& config, const Mesh& mesh, const LoadOptions& options,
                          WeightSource& source, WeightBytes* by_module = nullptr);
// Requests only the head, with all its rows.
void RequestHead(const ModelConfig& config, WeightSource& source);

}  // namespace switchyard
