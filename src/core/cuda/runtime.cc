#include "core/cuda/runtime.h"

#include <cstdlib>
#include <mutex>

#include "core/error.h"

namespace switchyard::cuda {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // those that do not stick are told once
  throw Resource("{}: {}", what, cudaGetErrorString(error));
}

int DeviceCount() {
  // Before CUDA starts. Streams of ranks that share a GPU need hardware queues of their own, of
  // which there are 8 otherwise: in one queue a kernel that waits for another rank's would have
  // that one behind it. And kernels are loaded at once: loading one at its first use waits for all
  // that run, one of which may wait for the kernel that is being loaded.
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
    throw Invalid("there is no GPU {}: {} were found", device, count);
  Check(cudaSetDevice(device), "choice of the GPU");
}

namespace {
int Attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  Check(cudaGetDevice(&device), "current GPU");
  Check(cudaDeviceGetAttribute(&value, attribute, device), "attribute of the GPU");
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
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw Resource("GPU memory: {:.2f} GiB asked for, {:.2f} of {:.2f} GiB are free",
                   bytes / 1073741824.0, free / 1073741824.0, total / 1073741824.0);
  }
  Check(cudaMemset(data_, 0, bytes), "clearing of GPU memory");
  // Of no stream, and pageable work may overtake it.
  Check(cudaDeviceSynchronize(), "clearing of GPU memory");
}
DeviceMemory::~DeviceMemory() {
  if (data_) cudaFree(data_);
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

Stream::Stream() {
  // A stream gets its hardware queue with its first work, and two threads whose streams begin at
  // the same time can be given one queue (one pair in five to eight, driver of CUDA 13.0): ranks
  // that share a GPU then wait for each other for good. So the first work is here, one stream at a
  // time.
  static std::mutex first_work;
  const std::lock_guard lock(first_work);
  const DeviceMemory word(sizeof(int));
  Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a new stream");
  try {
    Check(cudaMemsetAsync(word.data(), 0, word.bytes(), stream_), "a new stream");
    Synchronize();
  } catch (...) {
    cudaStreamDestroy(stream_);
    throw;
  }
}
Stream::~Stream() {
  if (stream_) cudaStreamDestroy(stream_);
}
void Stream::Synchronize() const { Check(cudaStreamSynchronize(stream_), "work of the GPU"); }

Event::Event(unsigned flags) { Check(cudaEventCreateWithFlags(&event_, flags), "a new event"); }
Event::~Event() {
  if (event_) cudaEventDestroy(event_);
}
void Event::Record(cudaStream_t stream) const {
  Check(cudaEventRecord(event_, stream), "an event");
}
void Event::Wait() const { Check(cudaEventSynchronize(event_), "work of the GPU"); }
double Event::MillisecondsSince(const Event& start) const {
  float ms = 0;
  Check(cudaEventElapsedTime(&ms, start.event_, event_), "time between events");
  return ms;
}

void Branch::Fork(cudaStream_t from) const {
  forked_.Record(from);
  Check(cudaStreamWaitEvent(stream_.get(), forked_.get()), "beginning of a branch");
}
void Branch::Join(cudaStream_t into) const {
  joined_.Record(stream_.get());
  Check(cudaStreamWaitEvent(into, joined_.get()), "end of a branch");
}

}  // namespace switchyard::cuda
