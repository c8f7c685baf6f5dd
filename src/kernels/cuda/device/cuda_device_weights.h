// Upload to a GPU: conversion of checkpoint weights, and staging of pageable host memory.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "core/cuda/runtime.h"
#include "core/dtype.h"
#include "core/parallel.h"
#include "quant/weight_view.h"

namespace switchyard::cuda {

// The format in which a device of `dtype` stores a view (kernels::GpuFormat). A view of adjacent
// rows counts as whole FP8 blocks if it begins on block boundaries. `plain`: selects no format with
// scales.
WeightFormat DeviceFormat(const WeightView& w, DType dtype, bool plain = false);

struct UploadTarget {
  std::function<std::shared_ptr<void>(size_t bytes)> allocate;  // zeroed
  // Null: the memory holds the weight already, so the data of the view are not read.
  std::function<void(void* to, const void* from, size_t bytes)> copy_in;
};
// Makes a compact copy [n, k]: row0 and col0 are 0, row_step is 1, stored_k is k. Activation format
// and input scale are kept.
WeightView UploadWeight(const WeightView& w, WeightFormat form, const UploadTarget& target,
                        ThreadPool& pool);

// FusedOps::ConcatenateRows of uploaded matrices; returns when the copies are complete. `copies`:
// false if the memory holds the rows already.
WeightView ConcatWeightRows(std::span<const WeightView> parts,
                            const std::function<std::shared_ptr<void>(size_t bytes)>& allocate,
                            cudaStream_t stream, bool copies = true);

// Copies between pageable host memory and the device, staged through page-locked memory. Owned by a
// device, for its stream; used by the device's thread. A ring of page-locked segments: DMA reads
// one segment while the host fills the next.
class Staging {
 public:
  explicit Staging(cudaStream_t stream);

  // Copies host memory to the device. The caller may change `from` when this returns.
  void CopyIn(void* to, const void* from, size_t bytes);
  // Copies device memory to the host. `to` is complete when this returns.
  void CopyOut(void* to, const void* from, size_t bytes);

  // Returns at most kSegmentBytes of page-locked memory, aligned to 16. Copies that read it must be
  // enqueued before the next call on this object.
  void* Reserve(size_t bytes);
  static constexpr size_t kSegmentBytes = size_t{4} << 20;

  void SetWait(std::function<void(cudaEvent_t)> wait) {
    wait_ = std::move(wait);
  }  // see CudaDevice::SetWait

 private:
  static constexpr int kSegments = 4;
  std::byte* segment(int i) const { return memory_.as<std::byte>() + i * kSegmentBytes; }
  void NextSegment();
  void WaitFor(const Event& event) const;

  cudaStream_t stream_;
  PinnedMemory memory_{kSegments * kSegmentBytes};
  std::array<Event, kSegments> read_;  // completion of the copies of each segment
  int segment_ = 0;
  size_t used_ = 0;                        // bytes used in it
  std::function<void(cudaEvent_t)> wait_;  // may be empty
};

}  // namespace switchyard::cuda
