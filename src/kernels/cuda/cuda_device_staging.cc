#include "kernels/cuda/cuda_device_staging.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace switchyard::cuda {

Staging::Staging(cudaStream_t stream) : stream_(stream) {}

void Staging::WaitFor(const Event& event) const {
  if (wait_) wait_(event.get());
  event.Wait();
}

// In the first pass through the ring the wait returns at once, because an event that was never
// recorded counts as complete.
void Staging::NextSegment() {
  read_[segment_].Record(stream_);
  segment_ = (segment_ + 1) % kSegments;
  used_ = 0;
  WaitFor(read_[segment_]);
}

void* Staging::Reserve(size_t bytes) {
  CHECK_LE(bytes, kSegmentBytes);
  if (used_ + bytes > kSegmentBytes) NextSegment();
  void* memory = segment(segment_) + used_;
  used_ = std::min(kSegmentBytes, (used_ + bytes + 15) / 16 * 16);
  return memory;
}

void Staging::CopyIn(void* to, const void* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kSegmentBytes) {
    const size_t count = std::min(kSegmentBytes, bytes - at);
    void* memory = Reserve(count);
    std::memcpy(memory, static_cast<const std::byte*>(from) + at, count);
    Check(cudaMemcpyAsync(static_cast<std::byte*>(to) + at, memory, count, cudaMemcpyHostToDevice,
                          stream_),
          "copy to the GPU");
  }
}

void Staging::CopyOut(void* to, const void* from, size_t bytes) {
  const auto enqueue = [&](size_t at) {
    NextSegment();
    const size_t count = std::min(kSegmentBytes, bytes - at);
    used_ = kSegmentBytes;  // reserves the segment until the host has read it
    Check(cudaMemcpyAsync(segment(segment_), static_cast<const std::byte*>(from) + at, count,
                          cudaMemcpyDeviceToHost, stream_),
          "copy from the GPU");
    read_[segment_].Record(stream_);
    return segment_;
  };
  if (bytes == 0) return;
  int ready = enqueue(0);
  for (size_t at = 0; at < bytes; at += kSegmentBytes) {
    const int current = ready;
    if (at + kSegmentBytes < bytes) ready = enqueue(at + kSegmentBytes);
    WaitFor(read_[current]);
    std::memcpy(static_cast<std::byte*>(to) + at, segment(current),
                std::min(kSegmentBytes, bytes - at));
  }
}

}  // namespace switchyard::cuda
