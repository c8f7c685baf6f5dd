// Moves of experts between the slots and ranks of a GPU's MoE layers while passes run.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/cuda/runtime.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/device/cuda_device_weights.h"
#include "moe/cuda/runners/expert_upload.h"
#include "moe/cuda/runners/expert_weights.h"
#include "moe/layer_config.h"

namespace switchyard::cuda {

// Blocks of spare device memory, each for one expert of any layer. Any thread may use them.
class SpareExperts {
 public:
  SpareExperts(int64_t block_bytes, int blocks);
  int64_t block_bytes() const { return block_bytes_; }
  std::byte* Take();  // CHECKs that a block is free
  void Return(std::byte* block);

 private:
  const int64_t block_bytes_;
  const DeviceMemory memory_;
  std::mutex mutex_;  // guards free_
  std::vector<std::byte*> free_;
};

// An expert in spare memory (`spare` is set), or an expert in its slot.
struct DeviceExpert : PlacedExpert {
  DeviceExpert(std::shared_ptr<SpareExperts> from, std::byte* memory)
      : spare(std::move(from)), block(memory) {}
  explicit DeviceExpert(int of_slot) : slot(of_slot) {}
  ~DeviceExpert() override {
    if (spare) spare->Return(block);
  }
  DeviceExpert(const DeviceExpert&) = delete;
  DeviceExpert& operator=(const DeviceExpert&) = delete;

  const std::shared_ptr<SpareExperts> spare;
  std::byte* const block = nullptr;
  const int slot = -1;
};

// One per backend whose experts move. New experts are uploaded to spare memory on a side stream,
// concurrently with the passes. Between two passes they are copied to their slots on the stream of
// the passes. Slots keep their addresses, so captured passes stay valid and kernels need no table
// of pointers. The copy of an expert of 42 MB takes about 25 µs (calculated from memory bandwidth,
// not measured).
class ExpertMover {
 public:
  // Allocates spare memory for `blocks` experts of at most `block_bytes` bytes (BlockBytes).
  ExpertMover(CudaDevice& device, int64_t block_bytes, int blocks);
  static int64_t BlockBytes(const DeviceExperts& experts);

  // Uploads an expert and returns when its weights are in spare memory. Any thread may call it; the
  // call makes the GPU the thread's current one.
  std::shared_ptr<DeviceExpert> Upload(const DeviceExperts& layer,
                                       const kernels::ExpertWeights& expert);
  // Enqueues the replacement of all routed experts of a layer on the stream of the passes.
  // `logical` [experts]: the logical experts that the slots hold now. Returns objects that must
  // live until the next Upload. Called on the rank's thread.
  std::vector<OwnedExpert> Switch(const DeviceExperts& layer, std::span<const int32_t> logical,
                                  std::vector<OwnedExpert> experts);
  // Copies an expert to host memory, in a weight format of checkpoints, and waits for the copy. The
  // layer's weights must not be packed. Called on the rank's thread.
  OwnedExpert Download(const DeviceExperts& layer, int slot);

 private:
  ExpertSlot BlockSlot(const DeviceExperts& layer, std::byte* block) const;
  void Move(const DeviceExperts& layer, const ExpertSlot& from, const ExpertSlot& to) const;
  void WaitForSwitch() const;  // makes the side stream wait

  CudaDevice& device_;
  const std::shared_ptr<SpareExperts> spare_;
  std::mutex mutex_;  // guards the side stream and all members below
  const Stream side_;
  // Marks the end of the last Switch on the stream of the passes.
  Event switched_{cudaEventDisableTiming};
  Staging staging_;
  ExpertUploader uploader_;
};

}  // namespace switchyard::cuda
