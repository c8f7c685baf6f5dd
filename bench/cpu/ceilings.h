// Measured peak rates of this machine's cores.
#pragma once

#include "bench/report.h"

namespace switchyard::bench {

struct CpuCeilings {
  double bandwidth = 0.0;  // bytes per second read from memory
  double peak = 0.0;       // float32 operations per second; a multiply-add is two
  double int8_peak = 0.0;  // int8 operations per second
  double bf16_peak = 0.0;  // operations per second of bfloat16 dot products; `peak` if the CPU has
                           // none
};

// Measures the rates of `threads` threads together, with the instructions that the kernels use, and
// adds them to the report. Takes about two seconds, and half a GiB of memory per thread.
CpuCeilings MeasureCpu(int threads, Report& report);

}  // namespace switchyard::bench
