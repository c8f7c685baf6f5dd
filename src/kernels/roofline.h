// Measured hardware ceilings, so that every benchmark reports its fraction of them from the same
// run.
#pragma once

#include <cstdint>

namespace switchyard::kernels {

// Prefetch distance of sequential reads in bytes: the best of 0.5 to 4 KiB on the measured
// machines.
constexpr int64_t kReadPrefetchDistance = 1536;

// DRAM read bandwidth of `threads` threads in bytes per second. Each thread streams its own buffer,
// larger than the caches per core, with software prefetch. Best of a few passes; takes about half a
// second.
double MeasureReadBandwidth(int threads);

// Ceilings of one GPU. copy_bandwidth: bytes per second of a device-to-device copy, reads and
// writes counted. bf16_flops: floating-point operations per second of an 8192 × 8192 × 8192
// bfloat16 product (0 without supported tensor cores). Takes a tenth of a second. Error kInvalid
// without CUDA.
struct GpuCeilings {
  double copy_bandwidth = 0.0, bf16_flops = 0.0;
};
GpuCeilings MeasureGpu(int index);

}  // namespace switchyard::kernels
