// Experts in pinned host memory whose weights a GPU reads group by group (--stream-experts).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/cuda/runtime.h"
#include "core/tensor.h"
#include "moe/cuda/runners/expert_upload.h"
#include "moe/cuda/runners/expert_weights.h"

namespace switchyard::cuda {

// The experts of a layer in host memory, in the format of the layer's slots. Pages are allocated
// when they are written, so several threads share this work, and are page-locked by Pin.
class PinnedExperts {
 public:
  PinnedExperts() = default;
  PinnedExperts(const DeviceExperts& layer, int experts);

  ExpertSlot Slot(int32_t expert) const;
  // Call it when all slots are written. Error kResource names --stream-experts.
  void Pin();
  bool pinned() const { return lock_ != nullptr; }

 private:
  ExpertSlotBytes bytes_{};
  int64_t stride_ = 0;
  Tensor memory_;
  std::shared_ptr<void> lock_;  // of the pages; released before the memory
};

// Two buffers of some experts on the device, and the stream on which uploads run. All layers of a
// backend share them. Used by the rank's thread, except for Convert.
class ExpertStream {
 public:
  // `layer`: its arithmetic and sizes are those of the buffers. `expert`: any expert of the layer.
  ExpertStream(const DeviceExperts& layer, const kernels::ExpertWeights& expert, int group);

  // Error kInvalid names --stream-experts if a layer's experts do not fit the buffers.
  void CheckFits(const DeviceExperts& layer) const;
  // Converts an expert to the slot's format, in host memory. Several threads may call it.
  void Convert(const kernels::ExpertWeights& expert, const ExpertSlot& to);
  void EndConversions();  // frees the memory that Convert has used

  int group() const { return buffers_[0].experts; }
  // Enqueues the upload of these experts to buffer i, after Release(i) has been reached.
  void Upload(int i, const PinnedExperts& from, std::span<const int32_t> experts);
  // Makes later work on `stream` wait for the last upload to buffer i, and returns the buffer.
  const DeviceExperts& Await(int i, cudaStream_t stream) const;
  // All work that reads buffer i is now enqueued on `stream`.
  void Release(int i, cudaStream_t stream) const { read_[i].Record(stream); }

 private:
  std::array<DeviceExperts, 2> buffers_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<ExpertUploader>> idle_;  // guarded by mutex_
  Stream copies_;
  std::array<Event, 2> uploaded_{Event(cudaEventDisableTiming), Event(cudaEventDisableTiming)};
  std::array<Event, 2> read_{Event(cudaEventDisableTiming), Event(cudaEventDisableTiming)};
};

}  // namespace switchyard::cuda
