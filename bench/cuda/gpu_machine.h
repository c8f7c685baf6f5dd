// Measured peak rates of a GPU.
#pragma once

#include "bench/report.h"

namespace switchyard::bench {

struct GpuMachine {
  double read = 0.0;  // bytes per second that a kernel reads from memory
  double copy = 0.0;  // bytes per second, read plus written, of the copy engine
  // Operations per second; a multiply-add is two; 0: unknown. bf16: measured with a product of 8192
  // × 8192 × 8192 by this program's kernel. fp8: twice bf16, the ratio of the tensor cores' peak
  // rates. f32: multiply-adds on the CUDA cores.
  double bf16 = 0.0, fp8 = 0.0, f32 = 0.0;

  // Limit of kernels that only move bytes.
  double bandwidth() const { return read > copy ? read : copy; }
};

// Makes `gpu` the current device, measures it and adds the results to the report. Takes about half
// a second. Error kInvalid if there is no such GPU.
GpuMachine MeasureGpuMachine(int gpu, Report& report);

}  // namespace switchyard::bench
