// Conversion and upload of checkpoint weights to a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <span>

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
  std::function<void(void* to, const void* from, size_t bytes)> copy_in;
};
// Makes a compact copy [n, k]: row0 and col0 are 0, row_step is 1, stored_k is k. Activation format
// and input scale are kept.
WeightView UploadWeight(const WeightView& w, WeightFormat form, const UploadTarget& target,
                        ThreadPool& pool);

// FusedOps::ConcatenateRows of uploaded matrices; returns when the copies are complete.
WeightView ConcatWeightRows(std::span<const WeightView> parts,
                            const std::function<std::shared_ptr<void>(size_t bytes)>& allocate,
                            cudaStream_t stream);

}  // namespace switchyard::cuda
