// Where the decoder computes: the threads of a CPU, or a GPU. The layers are written against this
// alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/parallel.h"
#include "core/tensor.h"
#include "kernels/ops.h"
#include "kernels/row_params.h"

namespace switchyard::kernels {

class FusedOps;  // kernels/fused_ops.h

// One per rank; owned by who runs the rank, used by the rank's thread only.
//
// Pointers in Params, other than spans and the views inside them, are the device's memory. On a GPU
// ops are enqueued in order and return before they have run; what they were given must live until
// then, but for spans of Params, which are read at once.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string Describe() const = 0;  // for the log: "NVIDIA H200 (GPU 0)"
  virtual bool is_cpu() const { return false; }
  virtual FusedOps* fused() { return nullptr; }  // null: this device has none

  // Zeroed, aligned to 256 bytes. Freed with the last copy of the pointer, which may not outlive
  // the device. Error kResource.
  virtual std::shared_ptr<void> Allocate(size_t bytes) = 0;
  // `from` is host memory and may change once this returns.
  virtual void CopyIn(void* to, const void* from, size_t bytes) = 0;
  // `to` is host memory; waits for everything that was enqueued before.
  virtual void CopyOut(void* to, const void* from, size_t bytes) = 0;
  virtual void Synchronize() = 0;  // throws what went wrong in ops that were enqueued

  // A weight in memory and form that ops of this device take; as it is where they take it already.
  // Views of what comes back are taken too. HeadLinear wants all heads placed alike.
  // `plain`: in a format without scales.
  virtual WeightView Place(const WeightView& w, bool plain = false) = 0;
  virtual Tensor Place(const Tensor& t) = 0;

  // What Attention and LatentAttention work on until the next call (their `sequences` and
  // `page_size` are left empty by layers). Spans and page tables live until the pass ends.
  virtual void SetSequences(std::span<const SequenceSpan> sequences, int32_t page_size) = 0;

  // Runs `pass`, which calls ops of this device and collectives only. Where `key` is not 0 and the
  // device can record, one of the first calls of a key records what `pass` enqueues and later ones
  // replay that without calling it: passes of one key must enqueue the same ops on the same memory,
  // with as many sequences.
  virtual void Run(uint64_t key, const std::function<void()>& pass) = 0;

  // ops.h and above
  virtual void Linear(const LinearParams& p) = 0;
  virtual void LinearGroup(std::span<const LinearParams> parts) = 0;
  virtual void HeadLinear(const HeadLinearParams& p) = 0;
  virtual void Mlp(const GroupedMlpParams& p) = 0;  // of one expert
  virtual void RmsNorm(const RmsNormParams& p) = 0;
  virtual void AddInPlace(float* y, const float* x, int64_t count) = 0;
  virtual void Rope(const RopeParams& p) = 0;
  virtual void Attention(const AttentionParams& p) = 0;
  virtual void LatentAttention(const LatentAttentionParams& p) = 0;
  virtual void StoreKv(const StoreKvParams& p) = 0;
  virtual void Embed(const EmbedParams& p) = 0;
  virtual void CopyRows(const CopyRowsParams& p) = 0;
  virtual void SumSquares(const SumSquaresParams& p) = 0;
  virtual void ScaleBySquares(const ScaleBySquaresParams& p) = 0;
};

// The threads of a CPU; ops return when they have run. Borrows the pool.
std::unique_ptr<Device> MakeCpuDevice(ThreadPool& pool);

struct CudaDeviceOptions {
  int index = 0;
  // kF32: float32 products of what a CPU multiplies, on any GPU. kBF16: inputs of matrix products
  // are rounded to bfloat16 (or to FP8 in groups of 128 where the weight is kFp8Block), and
  // Hopper's matrix units are used where there are some; products with kF32 weights (routers) stay
  // float32.
  DType dtype = DType::kBF16;
  // The most rows of one pass, and the most sequences and pages of one sequence: sizes buffers.
  int64_t max_tokens = 0, max_sequences = 0, max_pages = 0;
  bool graphs = true;
  // Tests and benchmarks hold these against the ways without them, which give the same bits.
  bool fused = true;          // FusedOps; kernels begin early where the GPU can do that
  bool packs_experts = true;  // 4-bit experts stay packed where their sizes allow it
};
// A GPU, which becomes the current one of the calling thread. Error kInvalid where this build or
// machine has none.
std::unique_ptr<Device> MakeCudaDevice(const CudaDeviceOptions& options);
int CudaDeviceCount();  // 0 where the build has no CUDA

}  // namespace switchyard::kernels
