// What the cores of this machine reach at best, measured.
#pragma once

#include "bench/report.h"

namespace switchyard::bench {

struct CpuCeilings {
  double bandwidth = 0.0;  // bytes per second read from memory
  double peak = 0.0;       // float32 operations per second, two to a multiply-add
  double int8_peak = 0.0;  // likewise, of int8 codes
  double bf16_peak = 0.0;  // of pairs in bfloat16; that of float32 where there is no such product
};

// Of `threads` threads together, with the instructions that the kernels use. Notes them in the
// report. About two seconds, and half a GiB for each thread.
CpuCeilings MeasureCpu(int threads, Report& report);

}  // namespace switchyard::bench
