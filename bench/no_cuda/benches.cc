// Stubs for builds without CUDA.
#include "bench/benches.h"

#include "bench/calibration.h"
#include "core/error.h"

namespace switchyard::bench {
namespace {

Error NoCuda() {
  return Invalid("--device cuda: this build of switchyard has no CUDA; use --device cpu");
}

}  // namespace

void CudaKernels(const Options&, Report&) { throw NoCuda(); }
void CudaMoeLayer(const Options&, Report&) { throw NoCuda(); }
void CudaExchange(const Options&, Report&) { throw NoCuda(); }
plan::CostTable CalibrateCuda(const Options&, Report&) { throw NoCuda(); }

}  // namespace switchyard::bench
