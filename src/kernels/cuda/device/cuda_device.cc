#include "kernels/cuda/device/cuda_device.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <optional>
#include <vector>

#include "core/check.h"
#include "core/cpus.h"
#include "core/cuda/mapped_memory.h"
#include "core/cuda/runtime.h"
#include "core/device_store.h"
#include "core/duration.h"
#include "core/error.h"
#include "kernels/compressed.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/select_keys.h"
#include "kernels/cuda/device/cuda_device_products.h"
#include "kernels/cuda/device/cuda_device_sequences.h"
#include "kernels/cuda/device/cuda_device_weights.h"
#include "kernels/cuda/elementwise/ops_rows.h"
#include "kernels/cuda/elementwise/ops_streams.h"
#include "kernels/cuda/entries/entries.h"
#include "kernels/cuda/recurrent/ops_recurrent.h"
#include "kernels/fused_ops.h"
#include "kernels/recurrent.h"
#include "kernels/streams.h"

namespace switchyard::cuda {
namespace {

// Calls `run` with the GPU as the current one.
template <typename Run>
void On(int index, const Run& run) {
  int current = index;
  cudaGetDevice(&current);
  if (current != index) cudaSetDevice(index);
  run();
  if (current != index) cudaSetDevice(current);
}

// Memory of one GPU. The deleter switches to that GPU, so any thread may drop the last reference.
std::shared_ptr<void> AllocateOn(int index, size_t bytes) {
  auto* memory = new DeviceMemory(std::max<size_t>(bytes, 1));
  const auto free = [index, memory](void*) { On(index, [memory] { delete memory; }); };
  return {static_cast<void*>(memory->data()), free};
}

class GpuReleasableMemory final : public kernels::ReleasableMemory {
 public:
  GpuReleasableMemory(int index, size_t bytes)
      : index_(index), memory_(std::make_unique<MappedMemory>(bytes)) {}
  ~GpuReleasableMemory() override {
    On(index_, [this] { memory_.reset(); });
  }
  void* data() const override { return memory_->data(); }
  void Release() override { memory_->Unmap(); }
  void Restore() override { memory_->Map(); }

 private:
  const int index_;
  std::unique_ptr<MappedMemory> memory_;
};

// Releasable memory of a store.
class StoredMemory final : public kernels::ReleasableMemory {
 public:
  StoredMemory(DeviceStore& store, size_t bytes, std::function<void()> before_release)
      : store_(store), before_release_(std::move(before_release)) {
    store_.Begin();
    if (store_.filled() && store_.bytes() == 0) store_.Restore();  // released in the last epoch
    memory_ = store_.Allocate(bytes);
  }
  void* data() const override { return memory_.get(); }
  void Release() override {
    if (std::exchange(released_, true)) return;
    before_release_();
    store_.Release();
  }
  void Restore() override {
    if (!released_) return;
    store_.Restore();
    released_ = false;
  }

 private:
  DeviceStore& store_;
  const std::function<void()> before_release_;
  std::shared_ptr<std::byte> memory_;
  bool released_ = false;
};

// Makes the GPU current and returns its index. The initializer of index_ calls this, so that later
// members are constructed on this GPU.
int Use(int index) {
  UseDevice(index);
  return index;
}

class Gpu final : public CudaDevice,
                  public kernels::FusedOps,
                  public kernels::RecurrentOps,
                  public kernels::CompressedOps,
                  public kernels::StreamOps {
 public:
  explicit Gpu(const kernels::CudaDeviceOptions& options)
      : options_(options),
        index_(Use(options.index)),
        staging_(stream_.get()),
        products_(options.dtype, options.max_tokens, [this] { WaitForStream(); }),
        graphs_(stream_.get(), [this] { WaitForStream(); }) {}
  ~Gpu() override { cudaStreamSynchronize(stream_.get()); }

  cudaStream_t stream() const override { return stream_.get(); }
  int index() const override { return index_; }
  const kernels::CudaDeviceOptions& options() const override { return options_; }
  PdlStream chain() const override { return {stream_.get(), options_.fused && hopper_}; }
  kernels::FusedOps* fused() override { return options_.fused ? this : nullptr; }
  kernels::RecurrentOps* recurrent() override { return this; }
  kernels::CompressedOps* compressed() override { return this; }
  kernels::StreamOps* streams() override { return this; }
  void AddCheck(std::function<void()> check) override { checks_.push_back(std::move(check)); }
  void SetWait(std::function<void(cudaEvent_t)> wait) override {
    wait_ = wait;
    staging_.SetWait(std::move(wait));
  }
  void ClearGraphs() override { graphs_.Clear(); }
  void SetWeightStore(DeviceStore* store) override { store_ = store; }
  void SetCacheStore(DeviceStore* store, std::function<void()> before_release) override {
    cache_store_ = store;
    before_release_ = std::move(before_release);
  }
  DeviceStore* weight_store() const override { return store_; }

  std::string Describe() const override {
    cudaDeviceProp properties;
    Check(cudaGetDeviceProperties(&properties, index_), "reading GPU properties");
    return fmt::format("{} (GPU {})", properties.name, index_);
  }

  std::shared_ptr<void> Allocate(size_t bytes) override {
    CHECK(!graphs_.recording());
    return AllocateOn(index_, bytes);
  }
  std::shared_ptr<kernels::ReleasableMemory> AllocateReleasable(size_t bytes) override {
    CHECK(!graphs_.recording());
    if (DeviceStore* store = std::exchange(cache_store_, nullptr))
      return std::make_shared<StoredMemory>(*store, bytes, std::move(before_release_));
    if (!MappedMemory::Supported()) return nullptr;
    return std::make_shared<GpuReleasableMemory>(index_, std::max<size_t>(bytes, 1));
  }
  void CopyIn(void* to, const void* from, size_t bytes) override {
    CHECK(!graphs_.recording());
    staging_.CopyIn(to, from, bytes);
  }
  void CopyOut(void* to, const void* from, size_t bytes) override {
    CHECK(!graphs_.recording());
    staging_.CopyOut(to, from, bytes);
    RunChecks();
  }
  std::unique_ptr<kernels::HostCopy> MakeHostCopy() override {
    return std::make_unique<PinnedCopy>(*this);
  }
  void Synchronize() override {
    CHECK(!graphs_.recording());
    WaitForStream();
    RunChecks();
  }

  std::unique_ptr<kernels::DeviceTimer> MakeTimer() override {
    return std::make_unique<StreamTimer>(*this);
  }

  WeightView Place(const WeightView& w, bool plain) override {
    UploadTarget target = {.allocate = [this](size_t bytes) { return AllocateWeights(bytes); }};
    if (!has_weights())
      target.copy_in = [this](void* to, const void* from, size_t bytes) {
        CopyIn(to, from, bytes);
      };
    return UploadWeight(w, DeviceFormat(w, options_.dtype, plain), target, pool());
  }
  Tensor Place(const Tensor& t) override {
    std::shared_ptr<void> memory = AllocateWeights(t.num_bytes());
    if (!has_weights()) CopyIn(memory.get(), t.raw(), t.num_bytes());
    return Tensor::View(memory.get(), t.dtype(), t.shape(), memory);
  }

  std::unique_ptr<kernels::PassSequences> MakeSequences() override {
    CHECK(!graphs_.recording());
    return std::make_unique<Sequences>(options_, staging_, graphs_, stream_.get());
  }

  void Run(uint64_t key, const std::function<void()>& pass) override {
    if (key == 0 || !options_.graphs) return pass();
    graphs_.Run(key, pass);
  }

  void Linear(const kernels::LinearParams& p) override { products_.Linear(p, chain()); }
  void LinearGroup(std::span<const kernels::LinearParams> parts) override {
    products_.LinearGroup(parts, stream_.get());
  }
  void HeadLinear(const kernels::HeadLinearParams& p) override {
    products_.HeadLinear(p, stream_.get());
  }
  void Mlp(const kernels::GroupedMlpParams& p) override { products_.Mlp(p, stream_.get()); }

  void RmsNorm(const kernels::RmsNormParams& p) override {
    Check(ops::RmsNorm(p, stream_.get()), "RmsNorm");
  }
  void LayerNorm(const kernels::LayerNormParams& p) override {
    Check(ops::LayerNorm(p, stream_.get()), "LayerNorm");
  }
  void AddInPlace(float* y, const float* x, int64_t count) override {
    Check(ops::AddInPlace(y, x, count, stream_.get()), "AddInPlace");
  }
  void Clamp(float* x, int64_t count, float limit) override {
    Check(ops::Clamp(x, count, limit, stream_.get()), "Clamp");
  }
  void MultiplyBySigmoid(float* x, const float* gate, int64_t count) override {
    Check(ops::MultiplyBySigmoid(x, gate, count, stream_.get()), "MultiplyBySigmoid");
  }
  void MultiplyRowsBySigmoid(float* x, const float* gate, int64_t rows, int64_t n) override {
    Check(ops::MultiplyRowsBySigmoid(x, gate, rows, n, stream_.get()), "MultiplyRowsBySigmoid");
  }
  void GatherTokens(int32_t* ids, const int32_t* rows, const int32_t* tokens,
                    int64_t count) override {
    Check(ops::GatherTokens(ids, rows, tokens, count, stream_.get()), "GatherTokens");
  }
  void TokensToFloats(float* y, int64_t ldy, const int32_t* tokens, int64_t count) override {
    Check(ops::TokensToFloats(y, ldy, tokens, count, stream_.get()), "TokensToFloats");
  }
  void ClearEntries(int32_t* values, const int32_t* index, int64_t count) override {
    Check(ops::ClearEntries(values, index, count, stream_.get()), "ClearEntries");
  }
  void Rope(const kernels::RopeParams& p) override { Check(ops::Rope(p, stream_.get()), "Rope"); }
  void StoreKv(const kernels::StoreKvParams& p) override {
    Check(ops::StoreKv(p, stream_.get()), "StoreKv");
  }
  void Embed(const kernels::EmbedParams& p) override {
    Check(ops::Embed(p, stream_.get()), "Embed");
  }
  void CopyRows(const kernels::CopyRowsParams& p) override {
    Check(ops::CopyRows(p, stream_.get()), "CopyRows");
  }
  void MoveRows(const kernels::MoveRowsParams& p) override {
    CHECK(!graphs_.recording());
    Check(ops::MoveRows(p, stream_.get()), "MoveRows");
  }
  void SumSquares(const kernels::SumSquaresParams& p) override {
    Check(ops::SumSquares(p, stream_.get()), "SumSquares");
  }
  void ScaleBySquares(const kernels::ScaleBySquaresParams& p) override {
    Check(ops::ScaleBySquares(p, stream_.get()), "ScaleBySquares");
  }

  void Attention(const kernels::AttentionParams& p,
                 const kernels::PassSequences& sequences) override {
    cuda::Attention(p, TableOf(sequences), exact(), chain(), AttentionScratch());
  }
  void LatentAttention(const kernels::LatentAttentionParams& p,
                       const kernels::PassSequences& sequences) override {
    cuda::LatentAttention(p, TableOf(sequences), exact(), chain(), AttentionScratch());
  }
  void SelectKeys(const kernels::SelectKeysParams& p,
                  const kernels::PassSequences& sequences) override {
    cuda::SelectKeys(p, TableOf(sequences), exact(), stream_.get(), AttentionScratch());
  }
  void InheritKeys(const kernels::InheritKeysParams& p,
                   const kernels::PassSequences& sequences) override {
    cuda::InheritKeys(p, TableOf(sequences), stream_.get(), AttentionScratch());
  }

  bool ChunksRows(int64_t key_dim) const override {
    return hopper_ && key_dim <= kernels::kMaxChunkKeyDim;
  }
  void ShortConv(const kernels::ShortConvParams& p) override {
    CHECK(p.width >= 1 && p.width <= kernels::kMaxConvWidth);
    Check(ops::ShortConv(p, chain()), "ShortConv");
  }
  void GatedDelta(const kernels::GatedDeltaParams& p) override {
    CHECK_LE(p.key_dim, kernels::kMaxGpuKeyDim);  // CheckOptions rejects larger ones
    CHECK(!p.chunked || (p.rule == kernels::StateRule::kDelta && ChunksRows(p.key_dim)));
    Check(ops::GatedDelta(p, chain()), "GatedDelta");
  }
  void GatedNorm(const kernels::GatedNormParams& p) override {
    Check(ops::GatedNorm(p, chain()), "GatedNorm");
  }

  void Compress(const kernels::CompressParams& p) override { cuda::Compress(p, stream_.get()); }
  void SelectEntries(const kernels::SelectEntriesParams& p,
                     const kernels::PassSequences& sequences) override {
    cuda::SelectEntries(p, TableOf(sequences), exact(), stream_.get(), AttentionScratch());
  }
  void AttendToEntries(const kernels::EntryAttentionParams& p,
                       const kernels::PassSequences& sequences) override {
    CHECK(TableOf(sequences).branches == nullptr);  // it does not know branches
    cuda::AttendToEntries(p, TableOf(sequences), stream_.get());
  }
  void Collapse(const kernels::CollapseStreamsParams& p) override {
    Check(ops::CollapseStreams(p, stream_.get()), "CollapseStreams");
  }
  void Expand(const kernels::ExpandStreamsParams& p) override {
    Check(ops::ExpandStreams(p, stream_.get()), "ExpandStreams");
  }

  void AddNorm(const kernels::AddNormParams& p) override {
    Check(ops::AddNorm(p, chain()), "AddNorm");
  }
  bool SupportsHeads(int64_t head_dim, int64_t rotary_dim) const override {
    return ops::NormRopeStoreKvSupports(head_dim, rotary_dim);
  }
  void NormRopeStoreKv(const kernels::NormRopeStoreKvParams& p) override {
    Check(ops::NormRopeStoreKv(p, chain()), "NormRopeStoreKv");
  }
  WeightView ConcatenateRows(std::span<const WeightView> parts) override {
    CHECK(!graphs_.recording());
    return ConcatWeightRows(
        parts, [this](size_t bytes) { return AllocateWeights(bytes); }, stream_.get(),
        /*copies=*/!has_weights());
  }
  bool AttentionToBFloat16(const kernels::AttentionParams& p) const override {
    return cuda::AttentionToBFloat16(p, exact());
  }
  kernels::RoundedForm InputFormOf(const kernels::LinearParams& p) const override {
    return products_.InputFormOf(p);
  }
  void LinearOfRoundedRows(const kernels::LinearParams& p,
                           const kernels::RoundedRows& rows) override {
    products_.LinearOfRoundedRows(p, rows, chain());
  }

 private:
  static const SequenceTable& TableOf(const kernels::PassSequences& sequences) {
    return static_cast<const Sequences&>(sequences).table();
  }
  bool exact() const { return options_.dtype == DType::kF32; }
  std::shared_ptr<void> AllocateWeights(size_t bytes) {
    return store_ ? std::shared_ptr<void>(store_->Allocate(bytes)) : Allocate(bytes);
  }
  // Whether allocated memory holds its weights already.
  bool has_weights() const { return store_ && store_->filled(); }
  class PinnedCopy final : public kernels::HostCopy {
   public:
    explicit PinnedCopy(const Gpu& gpu) : gpu_(gpu) {}
    void Start(const void* from, size_t bytes) override {
      CHECK(!gpu_.graphs_.recording());
      if (bytes > memory_.bytes()) {
        gpu_.WaitForStream();  // as in Scratch::Get
        memory_ = PinnedMemory(2 * bytes);
      }
      bytes_ = bytes;
      if (bytes > 0)
        Check(cudaMemcpyAsync(memory_.as<void>(), from, bytes, cudaMemcpyDeviceToHost,
                              gpu_.stream_.get()),
              "copy from the GPU");
      done_.Record(gpu_.stream_.get());
    }
    std::span<const std::byte> Wait() override {
      if (gpu_.wait_) gpu_.wait_(done_.get());
      done_.Wait();
      gpu_.RunChecks();
      return {memory_.as<std::byte>(), bytes_};
    }

   private:
    const Gpu& gpu_;
    PinnedMemory memory_;
    Event done_{cudaEventDisableTiming};
    size_t bytes_ = 0;
  };

  // Waits for all work of the stream, with the deadline of wait_ if there is one.
  void WaitForStream() const {
    if (wait_) {
      synchronized_.Record(stream_.get());
      wait_(synchronized_.get());
    }
    stream_.Synchronize();
  }
  void RunChecks() const {
    for (const auto& check : checks_) check();
  }
  // Allocated by the first batch that needs it, which is never a captured one.
  std::span<std::byte> AttentionScratch() {
    if (attention_scratch_.bytes() == 0) {
      WaitForStream();  // as in Scratch::Get
      attention_scratch_ = DeviceMemory(kAttentionScratchBytes);
    }
    return {attention_scratch_.data(), attention_scratch_.bytes()};
  }
  // Threads that convert weights at load time; ranks of the machine share its CPUs.
  ThreadPool& pool() {
    if (!pool_) {
      pool_.emplace(std::clamp(AllowedCpuCount() / std::max(1, DeviceCount()), 1, 16));
    }
    return *pool_;
  }

  kernels::CudaDeviceOptions options_;
  int index_;
  bool hopper_ = IsHopper();  // initialized after index_, whose initializer selects the current GPU
  Stream stream_;
  Staging staging_;
  LinearOps products_;
  Graphs graphs_;
  DeviceMemory attention_scratch_;
  std::optional<ThreadPool> pool_;
  DeviceStore* store_ = nullptr;
  DeviceStore* cache_store_ = nullptr;  // of the next AllocateReleasable
  std::function<void()> before_release_;
  std::vector<std::function<void()>> checks_;
  std::function<void(cudaEvent_t)> wait_;  // may be empty
  Event synchronized_;                     // the event that wait_ waits for
};

}  // namespace

CudaDevice& CudaDevice::From(kernels::Device& device) {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  CHECK(cuda != nullptr);
  return *cuda;
}

}  // namespace switchyard::cuda

namespace switchyard::kernels {

std::unique_ptr<Device> MakeCudaDevice(const CudaDeviceOptions& options) {
  if (options.dtype != DType::kF32 && options.dtype != DType::kBF16)
    throw Invalid("GPU compute dtype must be float32 or bfloat16, not {}", Name(options.dtype));
  return std::make_unique<cuda::Gpu>(options);
}

int CudaDeviceCount() { return cuda::DeviceCount(); }

}  // namespace switchyard::kernels

namespace switchyard::cuda {
namespace {

constexpr int kReadings = 100;
constexpr int64_t kGoodWindow = 50'000;  // nanoseconds

}  // namespace

int StreamTimer::Mark() noexcept {
  if (marks_ == kMaxMarks) return -1;
  try {
    if (marks_ == events_.size()) events_.emplace_back();
  } catch (const std::exception&) {
    return -1;  // no memory for an event
  }
  if (cudaEventRecord(events_[marks_].get(), stream_) != cudaSuccess) return -1;
  return static_cast<int>(marks_++);
}

std::span<const int64_t> StreamTimer::Resolve() {
  times_.clear();
  if (marks_ == 0) return times_;
  device_.Synchronize();
  // The stream is idle, so the reference event completes immediately: between two readings of the
  // host's clock. If other processes use the GPU, it may complete later, so the readings are
  // repeated.
  int64_t reference = 0, window = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kReadings && window > kGoodWindow; ++i) {
    const int64_t before = SteadyNanoseconds();
    reference_.Record(stream_);
    reference_.Wait();
    window = SteadyNanoseconds() - before;
    reference = before + window / 2;
  }
  for (size_t i = 0; i < marks_; ++i) {
    const double milliseconds = reference_.MillisecondsSince(events_[i]);
    times_.push_back(reference - std::llround(milliseconds * 1e6));
  }
  marks_ = 0;
  return times_;
}

}  // namespace switchyard::cuda
