// Device interface for the decoder layers, implemented by the CPU thread pool and by a GPU. Layers
// depend on this interface only.
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

namespace switchyard {
class DeviceStore;
}  // namespace switchyard

namespace switchyard::kernels {

// Marks positions in the stream of a device without waiting for it. Made by the device, which
// outlives it. Used by the rank's thread only, never while a pass is captured as a graph.
class DeviceTimer {
 public:
  virtual ~DeviceTimer() = default;
  // Marks the present end of the stream. Returns the mark's index since the last Resolve. Returns
  // -1 if too many marks are pending, or if the device has failed; the next op then reports the
  // failure.
  virtual int Mark() noexcept = 0;
  // Waits for the device. Returns the time of each mark in nanoseconds of steady_clock, exact to
  // some microseconds relative to the host and to half a microsecond among marks. Then no mark is
  // pending. The result is valid until the next call. Throws errors of enqueued ops.
  virtual std::span<const int64_t> Resolve() = 0;
};

class FusedOps;       // kernels/fused_ops.h
class RecurrentOps;   // kernels/recurrent.h
class CompressedOps;  // kernels/compressed.h
class StreamOps;      // kernels/streams.h

// The sequences of one pass, in the memory and form that a device's attention reads. Made by the
// device, which outlives it. Its memory has fixed addresses, so a captured pass reads the sequences
// that were set last.
class PassSequences {
 public:
  virtual ~PassSequences() = default;
  // Replaces the sequences. Spans and page tables must live until the pass ends.
  virtual void Set(std::span<const SequenceSpan> sequences, int32_t page_size) = 0;
};

// An asynchronous copy from device memory to the host. Made by a device, for its thread.
class HostCopy {
 public:
  virtual ~HostCopy() = default;
  // Enqueues a copy after all current work. The caller has waited for the previous copy. With 0
  // bytes, Wait only waits for the current work.
  virtual void Start(const void* from, size_t bytes) = 0;
  // Blocks until the copy is complete. The result is valid until the next Start.
  virtual std::span<const std::byte> Wait() = 0;
};

// Memory of a device that can be freed while its addresses stay valid for captured passes. Used by
// the device's thread, never while a pass is captured. Any thread may destroy it.
class ReleasableMemory {
 public:
  virtual ~ReleasableMemory() = default;
  virtual void* data() const = 0;
  // Waits for all enqueued work, then frees the physical memory. Until Restore, no op may access
  // it. Does nothing if it is free already.
  virtual void Release() = 0;
  // Allocates zeroed physical memory at the same addresses, unless there is some. If there is too
  // little, throws Error kResource and stays released.
  virtual void Restore() = 0;
};

// One per rank; owned by the rank's runner and used by the rank's thread only.
//
// Pointers in Params refer to device memory, except spans and the views in them. A GPU enqueues ops
// in order and returns before they run. Operands must stay valid until the op has run, except spans
// of Params, which are read during the call.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string Describe() const = 0;  // for the log: "NVIDIA H200 (GPU 0)"
  virtual bool is_cpu() const { return false; }
  virtual FusedOps* fused() { return nullptr; }  // null: no fused ops on this device

  // Allocates zeroed memory, aligned to 256 bytes. It is freed with the last copy of the pointer,
  // which must not outlive the device. Throws Error kResource.
  virtual std::shared_ptr<void> Allocate(size_t bytes) = 0;
  // Allocates zeroed memory of at least `bytes` bytes, aligned to 4096 bytes. The device outlives
  // it. Null if the device has no such memory. Throws Error kResource.
  virtual std::shared_ptr<ReleasableMemory> AllocateReleasable(size_t /*bytes*/) { return nullptr; }
  // `from` is host memory; it may be overwritten once this returns.
  virtual void CopyIn(void* to, const void* from, size_t bytes) = 0;
  // `to` is host memory; waits for all ops enqueued before.
  virtual void CopyOut(void* to, const void* from, size_t bytes) = 0;
  virtual std::unique_ptr<HostCopy> MakeHostCopy() = 0;
  virtual void Synchronize() = 0;  // throws errors of enqueued ops
  // Null on a device whose ops run synchronously. The timer must not outlive the device.
  virtual std::unique_ptr<DeviceTimer> MakeTimer() { return nullptr; }

  // Returns the weight in the memory and layout that ops of this device need, or `w` itself if it
  // already has both. Views of the result are valid weights too. HeadLinear needs all heads in the
  // same layout. `plain`: convert to a format without scales.
  virtual WeightView Place(const WeightView& w, bool plain = false) = 0;
  virtual Tensor Place(const Tensor& t) = 0;
  // From now on, Place and FusedOps::ConcatenateRows use memory of the store. If the store is
  // filled, they copy nothing, and do not read the data of their arguments. Null: memory of the
  // device again. The store outlives the device, which must not be a CPU.
  virtual void SetWeightStore(DeviceStore* /*store*/) {}
  // The next AllocateReleasable uses memory of the store, which outlives the device. If the store
  // is filled, the memory keeps its contents. `before_release` is called before the memory is freed
  // by Release. The device must not be a CPU.
  virtual void SetCacheStore(DeviceStore* /*store*/, std::function<void()> /*before_release*/) {}

  virtual std::unique_ptr<PassSequences> MakeSequences() = 0;

  // Runs `pass`, which may only call ops of this device and collectives. If `key` is not 0 and the
  // device supports graph capture, one of the first calls with a key captures the enqueued ops.
  // Later calls replay the graph without calling `pass`. All passes with one key must enqueue the
  // same ops on the same memory, with the same number of sequences. kVariant in a key stands for a
  // pass with the ops of the key without it, and others that need neither scratch nor loading. Its
  // first call captures it if the key without kVariant has been run.
  static constexpr uint64_t kVariant = uint64_t{1} << 63;
  virtual void Run(uint64_t key, const std::function<void()>& pass) = 0;

  // Ops of ops.h, and small ones that have no Params.
  virtual void Linear(const LinearParams& p) = 0;
  virtual void LinearGroup(std::span<const LinearParams> parts) = 0;
  virtual void HeadLinear(const HeadLinearParams& p) = 0;
  virtual void Mlp(const GroupedMlpParams& p) = 0;  // one expert
  virtual void RmsNorm(const RmsNormParams& p) = 0;
  virtual void LayerNorm(const LayerNormParams& p) = 0;
  virtual void AddInPlace(float* y, const float* x, int64_t count) = 0;
  // x[i] = x[i] limited to [-limit, limit]; NaN stays NaN.
  virtual void Clamp(float* x, int64_t count, float limit) = 0;
  // x[i] = x[i] · sigmoid(gate[i])
  virtual void MultiplyBySigmoid(float* x, const float* gate, int64_t count) = 0;
  // x[r · n + i] = x[r · n + i] · sigmoid(gate[r]) for all i < n
  virtual void MultiplyRowsBySigmoid(float* x, const float* gate, int64_t rows, int64_t n) = 0;
  // ids[i] = tokens[rows[i]] where rows[i] is not negative. A token of −1 becomes 0.
  virtual void GatherTokens(int32_t* ids, const int32_t* rows, const int32_t* tokens,
                            int64_t count) = 0;
  // y[i · ldy] = tokens[i], exact up to 2^24.
  virtual void TokensToFloats(float* y, int64_t ldy, const int32_t* tokens, int64_t count) = 0;
  // values[index[i]] = 0. Indices are not negative.
  virtual void ClearEntries(int32_t* values, const int32_t* index, int64_t count) = 0;
  virtual void Rope(const RopeParams& p) = 0;
  // `sequences` are from this device. `sequences` and `page_size` of `p` stay empty.
  virtual void Attention(const AttentionParams& p, const PassSequences& sequences) = 0;
  virtual void LatentAttention(const LatentAttentionParams& p, const PassSequences& sequences) = 0;
  virtual void SelectKeys(const SelectKeysParams& p, const PassSequences& sequences) = 0;
  virtual void InheritKeys(const InheritKeysParams& p, const PassSequences& sequences) = 0;
  virtual void StoreKv(const StoreKvParams& p) = 0;
  virtual void Embed(const EmbedParams& p) = 0;
  virtual void CopyRows(const CopyRowsParams& p) = 0;
  // Not within Run.
  virtual void MoveRows(const MoveRowsParams& p) = 0;
  virtual void SumSquares(const SumSquaresParams& p) = 0;
  virtual void ScaleBySquares(const ScaleBySquaresParams& p) = 0;

  virtual RecurrentOps* recurrent() { return nullptr; }    // null: no ops of recurrent layers
  virtual CompressedOps* compressed() { return nullptr; }  // null: no ops of compressed entries
  virtual StreamOps* streams() { return nullptr; }         // null: no ops of residual streams
};

// A Device on the threads of `pool`, which must outlive it. Ops run synchronously.
std::unique_ptr<Device> MakeCpuDevice(ThreadPool& pool);

struct CudaDeviceOptions {
  int index = 0;
  // kF32: float32 products, with the operands of the CPU kernels, on any GPU. kBF16: inputs of
  // matrix products are rounded to bfloat16 (to FP8 in groups of 128 for kFp8Block weights), and
  // Hopper tensor cores are used where available. Products with kF32 weights (routers) stay
  // float32.
  DType dtype = DType::kBF16;
  // Buffer capacities: rows per pass, sequences per pass, and pages per sequence.
  int64_t max_tokens = 0, max_sequences = 0, max_pages = 0;
  // Maximum keys of a branch (SequenceSpan::branch); 0: sequences have no branches.
  int64_t max_branch = 0;
  // With branches: maximum page tables of a pass, because the branches of a tree share one. 0:
  // max_sequences.
  int64_t max_page_tables = 0;
  bool graphs = true;
  // Tests and benchmarks compare both settings; the results are bit-identical.
  bool fused = true;          // FusedOps, and programmatic dependent launch where supported
  bool packs_experts = true;  // 4-bit experts stay packed if their shapes allow it
};
// A GPU, which becomes the current CUDA device of the calling thread. Throws Error kInvalid if the
// build has no CUDA or the machine has no such GPU.
std::unique_ptr<Device> MakeCudaDevice(const CudaDeviceOptions& options);
int CudaDeviceCount();  // 0 in a build without CUDA

}  // namespace switchyard::kernels
