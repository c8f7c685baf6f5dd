// What the readers of all packings share: tensors by name with their checks, the ranges that are
// used, and work that is left for the end.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/parallel.h"
#include "model/weights/load_jobs.h"
#include "model/weights/prefault.h"
#include "model/weights/slabs.h"
#include "model/weights/source.h"

namespace switchyard {

// A copy, or an original, with what keeps it alive.
struct Bytes {
  const uint8_t* data = nullptr;
  std::shared_ptr<const void> owner;
};

// Elements [first, first + count) as float32. safetensors does not align tensors: matrices are used
// at any address, but numbers that are read one by one are copied first.
Tensor Floats(const StoredTensor& t, int64_t first, int64_t count);

bool IsPlain(DType dtype);  // float32, bfloat16 or float16

// Keeps both alive.
std::shared_ptr<const void> BothOwners(const std::shared_ptr<const void>& a,
                                       const std::shared_ptr<const void>& b);

// Of a request: its tensor's shape, and the name of the module it belongs to ("….up_proj").
std::vector<int64_t> MatrixShape(const MatrixRequest& r);
std::string_view ModuleOf(const MatrixRequest& r);
// The request's part, as a view of the whole stored matrix at `data`.
WeightView StoredView(const MatrixRequest& r, WeightFormat format, const uint8_t* data,
                      std::shared_ptr<const void> owner);

// Used by one thread, but for the work it is given.
class CheckpointReader {
 public:
  CheckpointReader(const Checkpoint& checkpoint, const ModelConfig& config,
                   const CheckpointSourceOptions& options)
      : checkpoint_(checkpoint),
        config_(config),
        options_(options),
        slabs_(options.slab_bytes > 0 ? options.slab_bytes : Slabs::kSlabBytes) {}

  const ModelConfig& config() const { return config_; }
  bool read_data() const { return options_.read_data; }
  bool check_values() const { return options_.read_data && options_.check_nan_scales; }

  bool Has(std::string_view name) const { return checkpoint_.Find(name) != nullptr; }
  // nullptr where absent; no check.
  const StoredTensor* Optional(std::string_view name);
  // nullptr, and noted, where absent. Error where the shape is not the one config.json implies.
  const StoredTensor* Find(const std::string& name, const std::vector<int64_t>& shape,
                           std::string_view keys);
  // The same, of one dtype.
  const StoredTensor* Find(const std::string& name, DType dtype, const std::vector<int64_t>& shape,
                           std::string_view keys);
  // The second name where it is stored, else the first.
  std::string EitherName(const std::string& first, const std::string& second) const {
    return !Has(first) && Has(second) ? second : first;
  }
  // Notes a tensor that is absent.
  void Miss(const std::string& name);
  // One number, of any shape that holds one; absent: nullopt.
  std::optional<float> OptionalScalar(const std::string& name);
  // The same; noted and 1 where absent or where data is not read.
  float Scalar(const std::string& name);

  // What is read in place: bytes [first_byte, end_byte) of each stored row
  // that the view has.
  void Use(const WeightView& v, const uint8_t* data, int64_t row_bytes, int64_t first_byte,
           int64_t end_byte);
  void Use(const uint8_t* begin, const uint8_t* end) { used_.push_back({begin, end}); }
  Slabs& slabs() { return slabs_; }
  ThreadPool& pool();
  // Work to do before the views are used; `bytes` of the result.
  void Later(size_t bytes, std::function<void()> work) { jobs_.Add(bytes, std::move(work)); }
  // Scales of a whole tensor that were converted, so that parts of one share them.
  Bytes& Converted(const std::string& key) { return converted_[key]; }
  // A matrix that fits none of the formats is held in the model's dtype: said once, at the end.
  void NoteExpanded(std::string_view why);

  // Error kNotFound where tensors were absent; else makes the bytes resident and does the work.
  void Finish(const LoadJobs::Progress& progress);

 private:
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const CheckpointSourceOptions options_;
  Slabs slabs_;
  LoadJobs jobs_;
  std::optional<ThreadPool> pool_;
  std::vector<std::string> missing_;  // in the order of requests
  std::set<std::string> missing_names_;
  std::vector<MappedRange> used_;
  std::map<std::string, Bytes> converted_;
  int64_t expanded_ = 0;
  std::string_view why_expanded_;
};

// Error where the tensor is a stack of experts or transposed, as only plain checkpoints store them.
void RefuseStack(const MatrixRequest& r, const StoredTensor* t);

// The tensor of a plain matrix; nullptr, and noted, where absent. Error where it is not plain.
const StoredTensor* FindPlain(CheckpointReader& in, const MatrixRequest& r);
// Of e4m3 inputs with the checkpoint's scale (input_scale); without one each row has its own.
void AddInputScale(CheckpointReader& in, const MatrixRequest& r, WeightView* view);
// ModelOpt's AWQ multiplies inputs by pre_quant_scale [k] where it could not fold that into the
// layer before. No format has scales of columns: the weights are multiplied by them, once, and held
// in the model's dtype (noted). float32 [k], undefined where data is not read; nullopt: none
// stored.
std::optional<Tensor> InputFactors(CheckpointReader& in, const MatrixRequest& r);

// Readers of packings (packing_*.cc). Each describes its layout. An absent tensor is noted and
// gives an undefined view.
WeightView ReadPlain(CheckpointReader& in, const MatrixRequest& r);
WeightView ReadFp8(CheckpointReader& in, const MatrixRequest& r);
WeightView ReadInt8(CheckpointReader& in, const MatrixRequest& r);
WeightView ReadMxfp4Blocks(CheckpointReader& in, const MatrixRequest& r);
WeightView ReadMxfp4(CheckpointReader& in, const MatrixRequest& r);
WeightView ReadNvfp4(CheckpointReader& in, const MatrixRequest& r);
WeightView ReadInt4(CheckpointReader& in, const MatrixRequest& r);
// Packs a plain matrix (`--quantization`).
WeightView ReadAndPack(CheckpointReader& in, const MatrixRequest& r);

// The part in the model's dtype: `read_row` writes columns [0, r.k) of a stored row.
WeightView Expand(CheckpointReader& in, const MatrixRequest& r,
                  std::function<void(int64_t row, float* out)> read_row);

}  // namespace switchyard
