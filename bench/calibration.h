// `switchyard bench calibrate`: the rates of this machine's kernels and links, as a cost table.
#pragma once

#include "bench/benches.h"
#include "plan/cost_table.h"

namespace switchyard::bench {

// Measures products, experts, attention, small ops and copies with all threads together, in five
// rounds of about 25 s, and takes medians. Whole layers and steps are not measured.
plan::CostTable CalibrateCpu(const Options& options, Report& report);
// Measures one GPU in less than a minute, with cases of CudaKernels, and the links between two GPUs
// of this host if it has two, with cases of CudaExchange. Entries that this cannot measure are
// those of the shipped table of the GPU, or of H200; `source` names them. Restricts `report` to the
// cases that the table needs. Errors kInvalid: in a build without CUDA, without a GPU, and on GPUs
// other than Hopper.
plan::CostTable CalibrateCuda(const Options& options, Report& report);

}  // namespace switchyard::bench
