// Linear layers of a device: selects the GEMM kernel for each weight format and prepares the input
// rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "core/cuda/runtime.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/gemm/ops_linear.h"
#include "kernels/cuda/quantized/ops_rounding.h"
#include "kernels/fused_ops.h"
#include "kernels/ops.h"

namespace switchyard::cuda {

// Device memory that grows to the largest request. Earlier buffers stay valid: captured graphs
// point to them.
class Scratch {
 public:
  // `synchronize` waits for the stream with a deadline. It is called before memory is allocated,
  // because an allocation waits for all work of the GPU, without one.
  explicit Scratch(std::function<void()> synchronize) : synchronize_(std::move(synchronize)) {}

  void* Get(size_t bytes);

 private:
  const std::function<void()> synchronize_;
  DeviceMemory memory_;
  std::vector<DeviceMemory> outgrown_;
};

// Weights come from UploadWeight or are views of such weights. The kernel and the form of the input
// rows depend on the weight and on the alignment of the output, never on the number of rows:
//   kF32 device                           LinearExact on rows in the weight's ActivationFormat
//   kBF16 device, kF32 or kF16 weight     LinearExact too: float32 routers are meant to stay exact
//   kBF16 device, kBF16 weight            DenseGemm on Hopper, or LinearBf16
//   kBF16 device, kFp8Block weight        DenseGemm on Hopper, rows in FP8 groups of 128; else
//                                         LinearExact on rows rounded the same way
// Owned by a device; used by the device's thread.
class LinearOps {
 public:
  // `synchronize`: see Scratch.
  LinearOps(DType dtype, int64_t max_tokens, const std::function<void()>& synchronize);

  void Linear(const kernels::LinearParams& p, const PdlStream& chain);
  // Rows that several parts read are rounded only once. Small GEMMs with the same rows run
  // concurrently on side streams.
  void LinearGroup(std::span<const kernels::LinearParams> parts, cudaStream_t stream);
  // Functions of FusedOps. The form is kNone unless Linear would use DenseGemm.
  kernels::RoundedForm InputFormOf(const kernels::LinearParams& p) const;
  void LinearOfRoundedRows(const kernels::LinearParams& p, const kernels::RoundedRows& rows,
                           const PdlStream& chain);
  void HeadLinear(const kernels::HeadLinearParams& p, cudaStream_t stream);
  void Mlp(const kernels::GroupedMlpParams& p, cudaStream_t stream);

 private:
  enum class Kernel { kExact, kMma, kDense };
  // The form of a GEMM's input rows.
  struct RowForm {
    enum Kind { kFloat, kBf16, kFp8 } kind = kFloat;
    ops::Rounding rounding;
  };
  struct Rows {
    ops::RowSource source;
    RowForm form;
    const void* data = nullptr;  // [m, k], row stride ld
    int64_t ld = 0;
    const float* scales = nullptr;  // kFp8: [k / 128, scale_ld]
    int64_t scale_ld = 0;
    bool Serve(const ops::RowSource& wanted, const RowForm& as) const;
  };

  Kernel KernelOf(const kernels::LinearParams& p) const;
  RowForm FormOf(const WeightView& w, Kernel kernel) const;
  Rows PrepareRows(const ops::RowSource& source, const RowForm& form, const PdlStream& chain);
  void Multiply(const kernels::LinearParams& p, Kernel kernel, const Rows& rows,
                const PdlStream& chain);
  // Multiplies all parts by `rows`, on side streams forked from and joined into `stream`.
  void MultiplyConcurrently(std::span<const kernels::LinearParams> parts, const Rows& rows,
                            cudaStream_t stream);
  int64_t Capacity(int64_t rows) const;  // rows that scratch is sized for

  DType dtype_;
  bool hopper_;
  int64_t max_tokens_;
  static constexpr int kSides = 2;
  Stream sides_[kSides];  // for the parts of a group after the first
  Event fork_, joined_[kSides];
  Scratch data_, scales_, up_;
};

}  // namespace switchyard::cuda
