// Measured peak rates of this machine's cores.
#pragma once

#include "bench/report.h"

namespace switchyard::bench {

struct CpuCeilings {
  double bandwidth = 0.0;  // bytes per second read from memory
  double peak = 0.0;       // float32 operations per second; a multiply-add is two
  double int8_peak = 0.0;  // the same for int8
  double bf16_peak = 0.0;  // the same for bfloat16 dot products; the float32 peak if the CPU has
                           // none
};

// Measures the rates of `threads` threads together, with the instructions that the kernels use, and
// adds them to the report. Takes about two seconds, and half a GiB of memory per thread.
CpuCeilings MeasureCpu(int threads, Report& report);

}  // namespace switchyard::bench
