// The CUDA runtime as the rest of the program uses it: calls that throw, and owners of what has to
// be freed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace switchyard::cuda {

// Error kResource "<what>: <CUDA's own words>" unless `error` is cudaSuccess. `what` says what was
// attempted ("copy of logits to the host"). Errors of kernels that ran before may show up here.
void Check(cudaError_t error, const char* what);

// GPUs of this machine; 0 where there is no driver. Never throws. The first call comes before any
// other use of CUDA: it asks for as many hardware queues as there can be, and for all kernels to be
// loaded when CUDA starts.
int DeviceCount();
// Makes `device` the one of the calling thread. Error kInvalid where there is none of that number.
void UseDevice(int device);
// Whether the current device has Hopper's matrix units and copy engine (compute capability 9.0).
bool IsHopper();
int MultiprocessorCount();  // of the current device

// Memory of the device that was current when it was allocated. Movable; freed with the object.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // Zeroed. Error kResource names the bytes asked for and those that are free.
  explicit DeviceMemory(size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
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
};

// Page-locked host memory, which copies to and from the device without a detour.
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

// Copies from any host memory. The bytes are there for kernels of all streams when it returns, as
// they need not be after cudaMemcpy: that returns once it has read pageable memory, and streams
// that do not block do not wait for what is still under way. `what` as for Check.
void CopyToDevice(void* to, const void* from, size_t bytes, const char* what);

// An order of work on the current device.
class Stream {
 public:
  // Waits for all work of the device.
  Stream();
  ~Stream();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;

  cudaStream_t get() const { return stream_; }
  void Synchronize() const;  // waits for all that was enqueued; throws what went wrong there

 private:
  cudaStream_t stream_ = nullptr;
};

// A point in a stream, with its time.
class Event {
 public:
  explicit Event(unsigned flags = cudaEventDefault);
  ~Event();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;

  cudaEvent_t get() const { return event_; }
  void Record(cudaStream_t stream) const;
  void Wait() const;                                   // the host, until it has passed
  double MillisecondsSince(const Event& start) const;  // both have passed

 private:
  cudaEvent_t event_ = nullptr;
};

// Work that leaves a stream and comes back: what is enqueued on stream() after Fork runs beside
// what follows on the stream it left. Belongs to the thread of that stream.
class Branch {
 public:
  cudaStream_t stream() const { return stream_.get(); }
  // What stream() gets from here on follows what `from` has now. Where `from` is being recorded it
  // is recorded too, and must be joined before that ends.
  void Fork(cudaStream_t from) const;
  // What `into` gets from here on follows what stream() has now, too. The first kernel there should
  // not be one that begins early (kernels/cuda/kernel_chain.cuh).
  void Join(cudaStream_t into) const;

 private:
  Stream stream_;
  Event forked_{cudaEventDisableTiming}, joined_{cudaEventDisableTiming};
};

}  // namespace switchyard::cuda
