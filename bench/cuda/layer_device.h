// What the benchmarks of a MoE layer on a GPU share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "core/cuda/runtime.h"
#include "kernels/device.h"
#include "moe/options.h"

namespace switchyard::bench {

// The GPU `index`, for passes of a layer in bfloat16.
inline std::unique_ptr<kernels::Device> LayerDevice(int index, const MoeShape& shape) {
  return kernels::MakeCudaDevice({.index = index,
                                  .dtype = DType::kBF16,
                                  .max_tokens = shape.max_tokens,
                                  .max_sequences = 1,
                                  .max_pages = 1});
}

// `count` normally distributed numbers in the device's memory.
inline std::shared_ptr<void> RandomRows(kernels::Device& device, int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  const std::shared_ptr<void> rows = device.Allocate(values.size() * sizeof(float));
  device.CopyIn(rows.get(), values.data(), values.size() * sizeof(float));
  device.Synchronize();
  return rows;
}

// Records an event, also while the stream is captured.
inline void MarkEvent(const cuda::Event& event, cudaStream_t stream) {
  cudaStreamCaptureStatus status;
  cuda::Check(cudaStreamIsCapturing(stream, &status), "capture status");
  cuda::Check(
      cudaEventRecordWithFlags(
          event.get(), stream,
          status == cudaStreamCaptureStatusNone ? cudaEventRecordDefault : cudaEventRecordExternal),
      "event");
}

}  // namespace switchyard::bench
