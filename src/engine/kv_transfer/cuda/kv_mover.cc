// KvMover on a GPU, and the export of memory to it.
#include "engine/kv_transfer/kv_mover.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/device/cuda/peer_memory.h"
#include "core/check.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/log.h"

namespace switchyard {
namespace {

using cuda::Check;

// Buffers are at least this large, so that most of them can be used again.
constexpr size_t kLeastBuffer = size_t{4} << 20;
// The longest time of one call's work on the GPU: copies of a few MiB, beside passes of a model.
constexpr std::chrono::seconds kWorkTime{30};

// Makes a GPU current during its lifetime.
class CurrentGpu {
 public:
  explicit CurrentGpu(int device) {
    Check(cudaGetDevice(&before_), "reading the current GPU");
    cuda::UseDevice(device);
  }
  ~CurrentGpu() { cudaSetDevice(before_); }
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

 private:
  int before_ = 0;
};

// Copies of one row each, for one call of the driver. A call for each copy takes longer than the
// copy of a page.
class CopyBatch {
 public:
  void Add(const KvCopy& copy) {
    to_.push_back(copy.to);
    from_.push_back(copy.from);
    bytes_.push_back(static_cast<size_t>(copy.bytes));
  }
  // Enqueues all copies, in any order. `one_call`: set to false if the driver has no such call, or
  // if the call does not take these copies.
  void Start(cudaStream_t stream, std::atomic<bool>* one_call) {
    if (bytes_.size() > 1 && *one_call && StartInOneCall(stream, one_call)) return;
    // After a failure some of the copies may run already. They are made again.
    for (size_t i = 0; i < bytes_.size(); ++i)
      Check(cudaMemcpyAsync(to_[i], from_[i], bytes_[i], cudaMemcpyDefault, stream),
            "copy of KV rows");
  }

 private:
  bool StartInOneCall(cudaStream_t stream, std::atomic<bool>* one_call) {
#if CUDART_VERSION >= 12080
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    size_t first = 0;  // the copy from which on the attributes hold
#if CUDART_VERSION >= 13000
    const cudaError_t error = cudaMemcpyBatchAsync(to_.data(), from_.data(), bytes_.data(),
                                                   bytes_.size(), &attributes, &first, 1, stream);
#else
    size_t failed = 0;
    std::vector<void*> from;
    for (const void* source : from_) from.push_back(const_cast<void*>(source));
    const cudaError_t error =
        cudaMemcpyBatchAsync(to_.data(), from.data(), bytes_.data(), bytes_.size(), &attributes,
                             &first, 1, &failed, stream);
#endif
    if (error == cudaSuccess) return true;
    if (error != cudaErrorNotSupported && error != cudaErrorCallRequiresNewerDriver &&
        error != cudaErrorInvalidValue)
      Check(error, "copy of KV rows");
    cudaGetLastError();
    if (one_call->exchange(false))
      LOG_INFO("pages of the KV cache are copied one by one: {}", cudaGetErrorString(error));
#else
    static_cast<void>(stream);
    *one_call = false;
#endif
    return false;
  }

  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<size_t> bytes_;
};

// Objects that threads take and give back.
template <typename T>
class Spares {
 public:
  // A spare one for which `fits` is true, else the result of `make`.
  template <typename Fits, typename Make>
  std::unique_ptr<T> Take(const Fits& fits, const Make& make) {
    {
      const std::lock_guard lock(mutex_);
      const auto found =
          std::ranges::find_if(spares_, [&](const auto& spare) { return fits(*spare); });
      if (found != spares_.end()) {
        std::unique_ptr<T> taken = std::move(*found);
        spares_.erase(found);
        return taken;
      }
    }
    return make();
  }
  void Give(std::unique_ptr<T> spare) {
    const std::lock_guard lock(mutex_);
    spares_.push_back(std::move(spare));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> spares_;
};

class GpuMover final : public KvMover {
 public:
  std::shared_ptr<std::byte> Map(const KvExport& memory) override {
    const int device = DeviceFor(memory);
    const CurrentGpu current(device);
    const std::string name = memory.bus_id.data();
    if (memory.process == cuda::ProcessName()) {
      auto* const data = reinterpret_cast<std::byte*>(memory.address);
      EnablePeerAccess(device, name);
      return {data, [](std::byte*) {}};
    }
    cudaIpcMemHandle_t handle;
    static_assert(sizeof handle == sizeof memory.handle);
    std::memcpy(&handle, memory.handle.data(), sizeof handle);
    void* mapped = nullptr;
    const cudaError_t error = cudaIpcOpenMemHandle(&mapped, handle, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) {
      cudaGetLastError();
      throw Error(ErrorKind::kResource,
                  fmt::format("GPU {} cannot map the KV cache on GPU {}: {}", BusIdOf(device), name,
                              cudaGetErrorString(error)),
                  "CUDA IPC and peer access between the GPUs are needed");
    }
    return {static_cast<std::byte*>(mapped), [device](std::byte* data) {
              try {
                const CurrentGpu current(device);
                Check(cudaIpcCloseMemHandle(data), "release of a mapped KV cache");
              } catch (const std::exception& failure) {
                LOG_DEBUG("{}", failure.what());
              }
            }};
  }

  void Copy(std::span<const KvCopy> copies) override {
    OnStream("a copy of KV rows", [&](cudaStream_t stream) {
      CopyBatch single;
      for (const KvCopy& copy : copies) {
        if (copy.rows == 1) {
          single.Add(copy);
          continue;
        }
        Check(cudaMemcpy2DAsync(copy.to, static_cast<size_t>(copy.to_stride), copy.from,
                                static_cast<size_t>(copy.from_stride),
                                static_cast<size_t>(copy.bytes), static_cast<size_t>(copy.rows),
                                cudaMemcpyDefault, stream),
              "copy of KV rows");
      }
      single.Start(stream, &one_call_);
    });
  }

  void Clear(std::span<const std::span<std::byte>> memory) override {
    OnStream("the clearing of memory of a KV cache", [&](cudaStream_t stream) {
      for (const std::span<std::byte> part : memory)
        Check(cudaMemsetAsync(part.data(), 0, part.size(), stream), "clearing of GPU memory");
    });
  }

  std::shared_ptr<std::byte> Buffer(size_t bytes) override {
    const CurrentGpu current(device());
    std::unique_ptr<cuda::PinnedMemory> memory = buffers_.Take(
        [&](const cuda::PinnedMemory& spare) { return spare.bytes() >= bytes; },
        [&] { return std::make_unique<cuda::PinnedMemory>(std::max(bytes, kLeastBuffer)); });
    auto* const data = memory->as<std::byte>();
    return {data, [this, spare = memory.release()](std::byte*) {
              // After a timeout, a copy may still use it.
              if (!late_) buffers_.Give(std::unique_ptr<cuda::PinnedMemory>(spare));
            }};
  }

 private:
  static std::string BusIdOf(int device) {
    char id[32] = {};
    Check(cudaDeviceGetPCIBusId(id, sizeof id, device), "reading the GPU's PCI bus id");
    return id;
  }

  // The GPU of the memory may be invisible to this process.
  static void EnablePeerAccess(int device, const std::string& bus_id) {
    int other = device;
    if (cudaDeviceGetByPCIBusId(&other, bus_id.c_str()) == cudaSuccess && other != device)
      cudaDeviceEnablePeerAccess(other, 0);
    cudaGetLastError();
  }

  int device() {
    const std::lock_guard lock(mutex_);
    return std::max(device_, 0);
  }
  int DeviceFor(const KvExport& memory) {
    const std::lock_guard lock(mutex_);
    if (device_ >= 0) return device_;
    if (cuda::DeviceCount() == 0) throw Resource("no GPU to copy KV rows: the driver finds none");
    if (cudaDeviceGetByPCIBusId(&device_, memory.bus_id.data()) != cudaSuccess) {
      cudaGetLastError();
      device_ = 0;
    }
    return device_;
  }

  // A stream, and the event at the end of its work.
  struct Lane {
    cuda::Stream stream{/*urgent=*/true};
    cuda::Event end{cudaEventDisableTiming};
  };

  // Runs `enqueue` with a stream that no other thread uses, and waits for the stream. Also after an
  // error of `enqueue`: no copy is in flight when this returns. Error kTimeout: one is. Then the
  // stream is not used again.
  template <typename Enqueue>
  void OnStream(const char* what, const Enqueue& enqueue) {
    const CurrentGpu current(device());
    std::unique_ptr<Lane> lane =
        lanes_.Take([](const Lane&) { return true; }, [] { return std::make_unique<Lane>(); });
    std::exception_ptr failure;
    try {
      enqueue(lane->stream.get());
    } catch (...) {
      failure = std::current_exception();
    }
    lane->end.Record(lane->stream.get());
    cuda::PollEvent(lane->end.get(), [&, start = std::chrono::steady_clock::now()] {
      if (std::chrono::steady_clock::now() - start < kWorkTime) return;
      late_ = true;
      throw Error(ErrorKind::kTimeout,
                  fmt::format("GPU {} has not ended {} within {:g} s", BusIdOf(device()), what,
                              std::chrono::duration<double>(kWorkTime).count()));
    });
    lanes_.Give(std::move(lane));
    if (failure) std::rethrow_exception(failure);
  }

  std::mutex mutex_;                   // guards device_
  int device_ = -1;                    // −1: none is chosen yet
  std::atomic<bool> late_ = false;     // whether some work has not ended in time
  std::atomic<bool> one_call_ = true;  // whether the driver may take many copies in one call
  Spares<Lane> lanes_;
  Spares<cuda::PinnedMemory> buffers_;
};

}  // namespace

std::shared_ptr<KvMover> MakeGpuMover() { return std::make_shared<GpuMover>(); }

KvExport ExportGpuMemory(std::byte* memory, size_t bytes) {
  CHECK_EQ(bytes % kExportUnit, 0u);
  const cuda::PeerInfo info = cuda::MakePeerInfo(memory, bytes);
  if (!info.exportable)
    throw Error(ErrorKind::kResource,
                fmt::format("GPU {} cannot export the memory of its KV cache (CUDA IPC), which "
                            "--disaggregation-mode needs",
                            info.bus_id.data()));
  KvExport exported{.process = info.process,
                    .bus_id = info.bus_id,
                    .address = reinterpret_cast<uint64_t>(memory),
                    .bytes = bytes};
  std::memcpy(exported.handle.data(), &info.handle, sizeof info.handle);
  return exported;
}

}  // namespace switchyard
