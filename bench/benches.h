// The benchmarks of `switchyard bench`, for each device. Each benchmark adds its cases to a Report,
// which prints a line per case (report.h). Benchmarks run on the calling thread and on rank threads
// or processes that they start. The machine should be otherwise idle.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/report.h"

namespace switchyard {
struct MoeBackends;
}

namespace switchyard::bench {

struct Options {
  // Number of ranks of `exchange` and `moe-layer`. 0: on GPUs one rank per GPU; on CPUs 2 ranks. On
  // CPUs, `exchange` with 0 also measures 4 ranks.
  int ranks = 0;
  int threads = 0;  // CPU threads of `kernels` and `roofline`, and per rank of `moe-layer`; 0: all
                    // cores
  int gpu = 0;      // GPU index for `kernels` and `roofline`
  std::vector<int64_t> tokens;  // tokens per rank; empty: the benchmark's defaults
  std::string model;            // moe-layer: a name of model_shapes.h; empty: all that fit
  // Experts per rank of `moe-layer`. 0: on CPUs the model's experts divided by the number of ranks;
  // on GPUs an eighth of the model's experts.
  int experts_per_rank = 0;
  std::shared_ptr<const MoeBackends> backends;  // null: the backends of this program
  // For kernel tuning: whether to print the time of each stage (`stages`) and of every GEMM plan
  // (`plans`), and the grid size in blocks (`blocks`).
  bool stages = false, plans = false;
  int blocks = 0;
};

// kernels: the products and the experts of a layer, the other ops and attention.
// moe-layer: a whole MoE layer with its router, exchange and experts.
// exchange: collectives, dispatch and combine.
// roofline: the measured limits of memory, caches and instructions, to which the results of the
// other benchmarks are compared.
// Error kInvalid for options that the device does not support, and from the Cuda functions in a
// build without CUDA.
void CpuKernels(const Options& options, Report& report);
void CpuMoeLayer(const Options& options, Report& report);
void CpuExchange(const Options& options, Report& report);
void CpuRoofline(const Options& options, Report& report);
void CudaKernels(const Options& options, Report& report);
void CudaMoeLayer(const Options& options, Report& report);
void CudaExchange(const Options& options, Report& report);
void CudaRoofline(const Options& options, Report& report);

}  // namespace switchyard::bench
