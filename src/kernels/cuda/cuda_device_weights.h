// Weights of a checkpoint as ops of a GPU take them.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <span>

#include "core/dtype.h"
#include "core/parallel.h"
#include "quant/weight_view.h"

namespace switchyard::cuda {

// The form that a weight gets on a device of this dtype (CudaDeviceOptions::dtype): kFp8Block where
// the view begins on borders of blocks, kF32, kBF16, and for kF32 devices kF16 as they are; all
// else becomes float32 or bfloat16.
// `plain`: without scales.
WeightFormat PlacedFormat(const WeightView& w, DType dtype, bool plain = false);

struct PlaceTarget {
  std::function<std::shared_ptr<void>(size_t bytes)> allocate;  // zeroed
  std::function<void(void* to, const void* from, size_t bytes)> copy_in;
};
// A compact copy [n, k]: row0 and col0 are 0, row_step is 1, stored_k is k. Input format and scale
// stay.
WeightView PlaceWeight(const WeightView& w, WeightFormat form, const PlaceTarget& target,
                       ThreadPool& pool);

// FusedOps::Stack of placed matrices; returns when the copies are done.
WeightView StackWeights(std::span<const WeightView> parts,
                        const std::function<std::shared_ptr<void>(size_t bytes)>& allocate,
                        cudaStream_t stream);

}  // namespace switchyard::cuda
