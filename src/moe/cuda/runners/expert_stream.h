// Experts in pinned host memory whose weights a GPU reads group by group (--stream-experts).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/cuda/runtime.h"
#include "moe/cuda/runners/expert_upload.h"
#include "moe/cuda/runners/expert_weights.h"

namespace switchyard::cuda {

// The experts of a layer in pinned host memory, in the format of the layer's slots.
class PinnedExperts {
 public:
  PinnedExperts() = default;
  PinnedExperts(const DeviceExperts& layer, int experts);

  ExpertSlot Slot(int32_t expert) const;
  bool empty() const { return memory_.bytes() == 0; }

 private:
  ExpertSlotBytes bytes_{};
  int64_t stride_ = 0;
  PinnedMemory memory_;
};

// Two buffers of some experts on the device, and the stream on which uploads run. All layers of a
// backend share them. Used by the rank's thread.
class ExpertStream {
 public:
  // `layer`: its arithmetic and sizes are those of the buffers. `expert`: any expert of the layer.
  ExpertStream(const DeviceExperts& layer, const kernels::ExpertWeights& expert, int group);

  // Error kInvalid names --stream-experts if a layer's experts do not fit the buffers.
  void CheckFits(const DeviceExperts& layer) const;
  // Converts an expert to the slot's format, in host memory.
  void Convert(const kernels::ExpertWeights& expert, const ExpertSlot& to);

  int group() const { return buffers_[0].experts; }
  // Enqueues the upload of these experts to buffer i, after Release(i) has been reached.
  void Upload(int i, const PinnedExperts& from, std::span<const int32_t> experts);
  // Makes later work on `stream` wait for the last upload to buffer i, and returns the buffer.
  const DeviceExperts& Await(int i, cudaStream_t stream) const;
  // All work that reads buffer i is now enqueued on `stream`.
  void Release(int i, cudaStream_t stream) const { read_[i].Record(stream); }

 private:
  std::array<DeviceExperts, 2> buffers_;
  ExpertUploader uploader_;
  Stream copies_;
  std::array<Event, 2> uploaded_{Event(cudaEventDisableTiming), Event(cudaEventDisableTiming)};
  std::array<Event, 2> read_{Event(cudaEventDisableTiming), Event(cudaEventDisableTiming)};
};

}  // namespace switchyard::cuda
