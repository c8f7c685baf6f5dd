// What a GPU reaches at best, measured.
#pragma once

#include "bench/report.h"

namespace switchyard::bench {

struct GpuMachine {
  double read = 0.0;  // bytes per second that a kernel reads from memory
  double copy = 0.0;  // bytes per second, read and written ones, that the copy engine moves
  // Operations per second, two to a multiply-add; 0: not known. bf16 of a product of 8192 × 8192 ×
  // 8192 by the program's own kernel; fp8 twice that, which is the ratio of the matrix units; f32
  // of the plain units.
  double bf16 = 0.0, fp8 = 0.0, f32 = 0.0;

  // What bounds kernels that only move bytes.
  double bandwidth() const { return read > copy ? read : copy; }
};

// Makes `gpu` the current one, measures it, and notes what it found in the report. About half a
// second. Error kInvalid where there is no such GPU.
GpuMachine MeasureGpuMachine(int gpu, Report& report);

}  // namespace switchyard::bench
