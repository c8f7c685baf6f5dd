// The interface of expert computation on GPUs (--moe-runner-backend).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "core/cuda/runtime.h"
#include "core/dtype.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/ops.h"
#include "moe/cuda/dispatchers/output_range.h"
#include "moe/cuda/permute/expert_rows.h"
#include "moe/cuda/runners/expert_weights.h"
#include "moe/types.h"

namespace switchyard::cuda {

// Buffers of a runner for one chunk of rows. Their sizes depend on the experts' arithmetic and
// intermediate size.
struct ProductBuffers {
  DeviceMemory a, a_scales;            // [rows, H] input of the first GEMM
  DeviceMemory gate_up;                // [rows, DeviceExperts::gate_up.n] output of the first GEMM
  DeviceMemory middle, middle_scales;  // [rows, I] the activated rows
};

struct ExpertActivation {
  kernels::Activation kind = kernels::Activation::kSwiGlu;
  float alpha = 1.0f, limit = 0.0f;  // of kSwiGluClamped
};

// A chunk of rows grouped by expert, the output of pre-permute and input of a runner. The host does
// not have the number of valid rows: chunk.order has offsets and counts on the device.
struct GpuGroupedRows {
  const void* a = nullptr;          // [chunk.rows, H] of ExpertArithmetic::input
  const float* a_scales = nullptr;  // kFp8: [H / 128, chunk.rows]
  RowChunk chunk;
  bool is_whole = true;  // whether the chunk has all rows of the order
  // Total rows of all experts and chunks if ranks have even load.
  int64_t expected_rows = 0;
};

// Owned by the backend, which all layers share. Used by the rank's thread only. A call enqueues
// kernels that depend only on its arguments, and never waits on the host, so a pass can be captured
// in a CUDA graph. A runner keeps no state of a batch, so chunks of several passes may alternate.
class GpuRunner {
 public:
  virtual ~GpuRunner() = default;

  virtual RunnerLayout layout() const { return RunnerLayout::kContiguous; }
  // Returns the types of the placed weights, of ProductBuffers::a and of the outputs. The type of
  // the outputs must be that of ChooseArithmetic, because the exchange sends them unchanged. Error
  // kInvalid names an unsupported weight format. `packs`: as for ChooseArithmetic, which the
  // default implementation calls.
  virtual ExpertArithmetic Arithmetic(std::span<const kernels::ExpertWeights> experts, DType dtype,
                                      bool packs) const;
  // Computes y [chunk.rows, H] of type ExpertArithmetic::output: the expert's output for each valid
  // row, unweighted. Other rows of y are ignored. `buffers` are scratch memory, except for `a`,
  // which is input. A row's output must be bit-identical regardless of the other rows and of the
  // chunk.
  virtual void Run(const DeviceExperts& experts, const ExpertActivation& activation,
                   const GpuGroupedRows& rows, const ProductBuffers& buffers, void* y,
                   const PdlStream& chain) = 0;

  // RunGateUp and RunDown replace Run in single-batch overlap. If the runner can compute the gate
  // and up projections separately, RunGateUp computes the activated rows in `buffers`. RunDown
  // computes the outputs in at most `parts` parts, in the order of their rows. It calls send(range)
  // as soon as a part is enqueued; range.last marks the last part of the chunk. The default
  // implementation computes both products in RunDown, in one part.
  //
  // DownParts returns the number of parts for which the overlap saves more time than the additional
  // launches cost. It may use only the numbers of rows that the host has, since the rows have not
  // arrived yet.
  virtual int DownParts(const DeviceExperts& /*experts*/, const GpuGroupedRows& /*rows*/) const {
    return 1;
  }
  virtual void RunGateUp(const DeviceExperts& /*experts*/, const ExpertActivation& /*activation*/,
                         const GpuGroupedRows& /*rows*/, const ProductBuffers& /*buffers*/,
                         const PdlStream& /*chain*/) {}
  virtual void RunDown(const DeviceExperts& experts, const ExpertActivation& activation,
                       const GpuGroupedRows& rows, const ProductBuffers& buffers, int parts,
                       void* y, const PdlStream& chain,
                       const std::function<void(OutputRange)>& send);
};

// The built-in expert computation of a rank on its GPU.

// Writes y [tokens, H] float32: the output of the only expert of `shared` for x [tokens, H].
void RunSharedExpert(const DeviceExperts& shared, const ExpertActivation& activation,
                     const float* x, int64_t tokens, float* y, ProductBuffers& buffers,
                     const PdlStream& chain);

}  // namespace switchyard::cuda
