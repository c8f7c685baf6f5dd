// The machine's own ceilings, measured, so that every benchmark can say how near it came in the
// same run.
#pragma once

#include <cstdint>

namespace switchyard::kernels {

// Bytes ahead that plain reads of memory ask for: the best of 0.5 to 4 KiB on machines we measured.
constexpr int64_t kReadAhead = 1536;

// Bytes per second that `threads` threads together read from DRAM: each streams its own buffer,
// larger than the caches per core, with software prefetch. Best of a few passes; about half a
// second.
double MeasureReadBandwidth(int threads);

// Of one GPU: bytes per second that a copy within it moves, read and written ones counted, and
// floating-point operations per second of a bfloat16 product of 8192 × 8192 × 8192 (0 where it has
// no matrix units that this program uses). A tenth of a second. Error kInvalid without CUDA.
struct GpuCeilings {
  double copy_bandwidth = 0.0, bf16_flops = 0.0;
};
GpuCeilings MeasureGpu(int index);

}  // namespace switchyard::kernels
