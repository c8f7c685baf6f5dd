// CUDA runtime wrappers: calls that throw on errors, and RAII owners of device memory, pinned
// memory, streams and events.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace switchyard {
class DeviceStore;
}  // namespace switchyard

namespace switchyard::cuda {

// Throws kResource "<what>: <CUDA error string>" unless `error` is cudaSuccess. `what` names the
// attempted operation ("copy of logits to the host"). The error may also be an asynchronous one of
// an earlier kernel.
void Check(cudaError_t error, const char* what);

// Number of GPUs of this machine; 0 without a driver. Never throws. The first call must precede any
// other use of CUDA: it requests the maximum number of hardware queues and eager loading of all
// kernels.
int DeviceCount();
// Sets the calling thread's current device. Error kInvalid if `device` does not exist.
void UseDevice(int device);
// Whether the current device supports wgmma and TMA (Hopper, compute capability 9.0).
bool IsHopper();
int MultiprocessorCount();  // for the current device

// Device memory, allocated on the device that is current at construction. Movable; freed with the
// object.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // Allocates zeroed memory. Error kResource reports the requested and the free bytes.
  explicit DeviceMemory(size_t bytes);
  // Memory for weights, from the store unless it is null (DeviceStore::Allocate).
  DeviceMemory(size_t bytes, DeviceStore* store);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        owner_(std::move(other.owner_)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(owner_, other.owner_);
    return *this;
  }

  size_t bytes() const { return bytes_; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  std::shared_ptr<void> owner_;  // of memory of a store; null: this object frees the memory
};

// Page-locked (pinned) host memory; copies to and from the device need no intermediate buffer.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(size_t bytes);
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Synchronous copy from any host memory. When it returns, the bytes are visible to kernels of all
// streams. cudaMemcpy does not guarantee that: it returns once it has read pageable memory, and
// non-blocking streams do not wait for the rest of the transfer. `what` as for Check.
void CopyToDevice(void* to, const void* from, size_t bytes, const char* what);

// A non-blocking stream of the current device.
class Stream {
 public:
  // The constructor synchronizes with all work of the device. Blocks of kernels on an `urgent`
  // stream are scheduled before those of other streams.
  explicit Stream(bool urgent = false);
  ~Stream();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;

  cudaStream_t get() const { return stream_; }
  void Synchronize() const;  // waits for all enqueued work; throws its errors

 private:
  cudaStream_t stream_ = nullptr;
};

// A CUDA event with timing.
class Event {
 public:
  explicit Event(unsigned flags = cudaEventDefault);
  ~Event();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;

  cudaEvent_t get() const { return event_; }
  void Record(cudaStream_t stream) const;
  void Wait() const;                                   // blocks the host until the event completes
  double MillisecondsSince(const Event& start) const;  // both events must have completed

 private:
  cudaEvent_t event_ = nullptr;
};

// Waits until `event` completes, and throws errors of the work before it. Meanwhile calls `check`
// once a millisecond. An exception of `check` ends the wait.
void PollEvent(cudaEvent_t event, const std::function<void()>& check);

// A side stream: work enqueued on stream() between Fork and Join runs concurrently with the main
// stream. Used by the thread of the main stream.
class Branch {
 public:
  // `urgent`: see the constructor of Stream.
  explicit Branch(bool urgent = false) : stream_(urgent) {}

  cudaStream_t stream() const { return stream_.get(); }
  // Later work on stream() waits for all current work on `from`. If `from` is being captured, the
  // side stream joins the capture and must be joined before the capture ends.
  void Fork(cudaStream_t from) const;
  // Later work on `into` also waits for all current work on stream(). The first kernel on `into`
  // should not use programmatic dependent launch (kernels/cuda/device/kernel_chain.cuh).
  void Join(cudaStream_t into) const;

 private:
  Stream stream_;
  Event forked_{cudaEventDisableTiming}, joined_{cudaEventDisableTiming};
};

}  // namespace switchyard::cuda
