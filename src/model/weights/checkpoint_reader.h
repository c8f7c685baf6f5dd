// Shared state of the readers of all packings: checked access to tensors by name, the byte ranges
// in use, and deferred work.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/parallel.h"
#include "model/weights/load_jobs.h"
#include "model/weights/prefault.h"
#include "model/weights/slabs.h"
#include "model/weights/source.h"

namespace switchyard {

// Bytes in place or copied, with their owner.
struct Bytes {
  const uint8_t* data = nullptr;
  std::shared_ptr<const void> owner;
};

// Elements [first, first + count) as float32. safetensors does not align tensors. Matrices are used
// at any address, but numbers that are read one by one are copied first.
Tensor Floats(const StoredTensor& t, int64_t first, int64_t count);

// Writes `x` as `dtype`: float32, bfloat16 or float16.
void StoreFloats(std::span<const float> x, DType dtype, uint8_t* out);

bool IsPlain(DType dtype);  // float32, bfloat16 or float16

// An owner that keeps both arguments alive.
std::shared_ptr<const void> BothOwners(const std::shared_ptr<const void>& a,
                                       const std::shared_ptr<const void>& b);

// For a request: the shape of its tensor, and the name of its module ("….up_proj").
std::vector<int64_t> MatrixShape(const MatrixRequest& r);
std::string_view ModuleOf(const MatrixRequest& r);
// The requested part, as a view of the complete stored matrix at `data`.
WeightView StoredView(const MatrixRequest& r, WeightFormat format, const uint8_t* data,
                      std::shared_ptr<const void> owner);

// Used by one thread, except for the deferred work.
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
  // The tensor of this name, without checks; nullptr if it is absent.
  const StoredTensor* Optional(std::string_view name);
  // The tensor of this name. If it is absent, records the name and returns nullptr. Error if the
  // shape differs from config.json's.
  const StoredTensor* Find(const std::string& name, const std::vector<int64_t>& shape,
                           std::string_view keys);
  // Like the other Find, but also checks the dtype.
  const StoredTensor* Find(const std::string& name, DType dtype, const std::vector<int64_t>& shape,
                           std::string_view keys);
  // The second name if only the second is stored, else the first name.
  std::string EitherName(const std::string& first, const std::string& second) const {
    return !Has(first) && Has(second) ? second : first;
  }
  // Records a missing tensor.
  void RecordMissing(const std::string& name);
  // The value of a tensor with one element, of any shape; nullopt if absent.
  std::optional<float> OptionalScalar(const std::string& name);
  // As OptionalScalar, but records an absent tensor. Returns 1.0 if the tensor is absent or data is
  // not read.
  float Scalar(const std::string& name);

  // Records bytes read in place: [first_byte, end_byte) of each stored row
  // of the view.
  void Use(const WeightView& v, const uint8_t* data, int64_t row_bytes, int64_t first_byte,
           int64_t end_byte);
  void Use(const uint8_t* begin, const uint8_t* end) { used_.push_back({begin, end}); }
  Slabs& slabs() { return slabs_; }
  ThreadPool& pool();
  // Defers `work` until Finish, since views are used only after it. `bytes`: size of the result.
  void Later(size_t bytes, std::function<void()> work) { jobs_.Add(bytes, std::move(work)); }
  // Cache of converted scales of complete tensors. The parts of a tensor share an entry.
  Bytes& Converted(const std::string& key) { return converted_[key]; }
  // Records a matrix that no format supports and that is held in the model's dtype; logged once.
  void RecordDequantized(std::string_view why);

  // Error kNotFound if tensors were missing; else prefaults the bytes in use and runs the work.
  void Finish(const LoadJobs::Progress& progress);

 private:
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const CheckpointSourceOptions options_;
  Slabs slabs_;
  LoadJobs jobs_;
  std::optional<ThreadPool> pool_;
  std::vector<std::string> missing_;  // names in the order of requests
  std::set<std::string> missing_names_;
  std::vector<MappedRange> used_;
  std::map<std::string, Bytes> converted_;
  int64_t expanded_ = 0;
  std::string_view dequantize_reason_;
};

// Error if the tensor is a stack of experts or transposed, which only plain checkpoints support.
void RejectStackedExperts(const MatrixRequest& r, const StoredTensor* t);

// The tensor of a plain matrix. If it is absent, records the name and returns nullptr. Error if the
// tensor is not plain.
const StoredTensor* FindPlain(CheckpointReader& in, const MatrixRequest& r);
// Sets the static scale of e4m3 inputs from the checkpoint (input_scale); without one the scale is
// dynamic per row.
void AddInputScale(CheckpointReader& in, const MatrixRequest& r, WeightView* view);
// ModelOpt's AWQ multiplies inputs by pre_quant_scale [k] if it could not fold it into the
// preceding layer. No format has column scales, so the weights are multiplied by them once and held
// in the model's dtype (recorded). Returns float32 [k], undefined if data is not read; nullopt if
// none is stored.
std::optional<Tensor> InputFactors(CheckpointReader& in, const MatrixRequest& r);

// Readers of packings (packing_*.cc), each with a description of its layout. A missing tensor is
// recorded and gives an undefined view.
WeightView ReadPlain(CheckpointReader& in, const MatrixRequest& r);
WeightView ReadFp8(CheckpointReader& in, const MatrixRequest& r);
WeightView ReadInt8(CheckpointReader& in, const MatrixRequest& r);
WeightView ReadMxfp4Blocks(CheckpointReader& in, const MatrixRequest& r);
WeightView ReadMxfp4(CheckpointReader& in, const MatrixRequest& r);
WeightView ReadNvfp4(CheckpointReader& in, const MatrixRequest& r);
WeightView ReadInt4(CheckpointReader& in, const MatrixRequest& r);
// Quantizes a plain matrix on load (`--quantization`).
WeightView ReadAndPack(CheckpointReader& in, const MatrixRequest& r);

// The requested part in the model's dtype: `read_row` writes columns [0, r.k) of a stored row.
WeightView Expand(CheckpointReader& in, const MatrixRequest& r,
                  const std::function<void(int64_t row, float* out)>& read_row);

}  // namespace switchyard
