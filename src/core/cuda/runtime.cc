#include "core/cuda/runtime.h"

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "core/cuda/driver.h"
#include "core/device_store.h"
#include "core/error.h"

namespace switchyard::cuda {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears a non-sticky error
  throw Resource("{}: {}", what, cudaGetErrorString(error));
}

int DeviceCount() {
  // These variables must be set before CUDA starts. Streams of ranks that share a GPU need separate
  // hardware queues; the default is 8. In a shared queue, a kernel that waits for another rank's
  // kernel can block that kernel behind itself. Kernels are loaded eagerly: loading one at its
  // first use waits for all running kernels, and one of those may be waiting for the kernel being
  // loaded.
  static const int settings = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0) +
                              setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  (void)settings;
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

void UseDevice(int device) {
  const int count = DeviceCount();
  if (device < 0 || device >= count)
    throw Invalid("GPU {} does not exist: found {} GPUs", device, count);
  Check(cudaSetDevice(device), "setting the current GPU");
}

namespace {
int Attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  Check(cudaGetDevice(&device), "reading the current GPU");
  Check(cudaDeviceGetAttribute(&value, attribute, device), "reading a GPU attribute");
  return value;
}
}  // namespace

bool IsHopper() {
  return Attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         Attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}
int MultiprocessorCount() { return Attribute(cudaDevAttrMultiProcessorCount); }

DeviceMemory::DeviceMemory(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  if (cudaMalloc(&data_, bytes) != cudaSuccess) {
    cudaGetLastError();
    ThrowOutOfMemory(bytes);
  }
  Check(cudaMemset(data_, 0, bytes), "zeroing GPU memory");
  // cudaMemset is not ordered with non-blocking streams, and pageable copies may overtake it.
  Check(cudaDeviceSynchronize(), "zeroing GPU memory");
}
DeviceMemory::DeviceMemory(size_t bytes, DeviceStore* store) {
  if (store == nullptr) {
    *this = DeviceMemory(bytes);
  } else if (bytes > 0) {
    owner_ = store->Allocate(bytes);
    data_ = owner_.get();
    bytes_ = bytes;
  }
}
DeviceMemory::~DeviceMemory() {
  if (data_ && !owner_) cudaFree(data_);
}

void CopyToDevice(void* to, const void* from, size_t bytes, const char* what) {
  if (bytes == 0) return;
  Check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), what);
  Check(cudaStreamSynchronize(cudaStreamLegacy), what);
}

PinnedMemory::PinnedMemory(size_t bytes) : bytes_(bytes) {
  if (bytes > 0) Check(cudaMallocHost(&data_, bytes), "page-locked host memory");
}
PinnedMemory::~PinnedMemory() {
  if (data_) cudaFreeHost(data_);
}

Stream::Stream(bool urgent) {
  // The driver assigns a stream's hardware queue at its first work. Two threads that create streams
  // at the same time can get the same queue (one pair in five to eight, driver of CUDA 13.0). Ranks
  // that share a GPU then deadlock. So the first work is enqueued here, one stream at a time.
  static std::mutex first_work;
  const std::lock_guard lock(first_work);
  const DeviceMemory word(sizeof(int));
  int least = 0, greatest = 0;
  Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "reading stream priorities");
  Check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, urgent ? greatest : least),
        "stream creation");
  try {
    Check(cudaMemsetAsync(word.data(), 0, word.bytes(), stream_), "stream creation");
    Synchronize();
  } catch (...) {
    cudaStreamDestroy(stream_);
    throw;
  }
}
Stream::~Stream() {
  if (stream_) cudaStreamDestroy(stream_);
}
void Stream::Synchronize() const { Check(cudaStreamSynchronize(stream_), "GPU execution"); }

Event::Event(unsigned flags) { Check(cudaEventCreateWithFlags(&event_, flags), "event creation"); }
Event::~Event() {
  if (event_) cudaEventDestroy(event_);
}
void Event::Record(cudaStream_t stream) const {
  Check(cudaEventRecord(event_, stream), "event record");
}
void Event::Wait() const { Check(cudaEventSynchronize(event_), "GPU execution"); }
double Event::MillisecondsSince(const Event& start) const {
  float ms = 0;
  Check(cudaEventElapsedTime(&ms, start.event_, event_), "event timing");
  return ms;
}

void PollEvent(cudaEvent_t event, const std::function<void()>& check) {
  using Clock = std::chrono::steady_clock;
  auto checked = Clock::now();
  while (true) {
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) Check(state, "GPU execution");
    cudaGetLastError();  // clears "not ready", which the next launch would report
    if (const auto now = Clock::now(); now - checked > std::chrono::milliseconds(1)) {
      checked = now;
      check();
    }
    std::this_thread::yield();
  }
}

void Branch::Fork(cudaStream_t from) const {
  forked_.Record(from);
  Check(cudaStreamWaitEvent(stream_.get(), forked_.get()), "forking a side stream");
}
void Branch::Join(cudaStream_t into) const {
  joined_.Record(stream_.get());
  Check(cudaStreamWaitEvent(into, joined_.get()), "joining a side stream");
}

}  // namespace switchyard::cuda
