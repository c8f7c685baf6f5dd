// The benchmarks of `switchyard bench`, for each device. Each prints and keeps a line for each of
// its cases (report.h). They run on the calling thread and on rank threads or processes of their
// own, and want a machine that has nothing else to do.
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
  // exchange, moe-layer; 0: on CPUs 2 and 4 one after the other (moe-layer: 2), else a rank for
  // each GPU.
  int ranks = 0;
  int threads =
      0;        // CPUs: of `kernels` and `roofline`, and of each rank of `moe-layer`; 0: all cores
  int gpu = 0;  // of `kernels` and `roofline`
  std::vector<int64_t> tokens;  // of each rank; empty: those that the benchmark names
  std::string model;            // moe-layer: one of model_shapes.h; empty: those that fit
  int experts_per_rank = 0;     // moe-layer; 0: on CPUs all over the ranks, else as EP 8 has them
  std::shared_ptr<const MoeBackends> backends;  // null: those of this program
  // For those who tune the kernels: times of each stage, of every plan, grids of so many blocks.
  bool stages = false, plans = false;
  int blocks = 0;
};

// kernels: the products and the experts of a layer, the other ops and attention.
// moe-layer: a whole MoE layer with its router, exchange and experts.
// exchange: collectives, and the way of rows to their experts and back.
// roofline: what memory, caches and instructions give, which the others are held against.
// Error kInvalid for what a device does not do; of the Cuda ones in a build without CUDA.
void CpuKernels(const Options& options, Report& report);
void CpuMoeLayer(const Options& options, Report& report);
void CpuExchange(const Options& options, Report& report);
void CpuRoofline(const Options& options, Report& report);
void CudaKernels(const Options& options, Report& report);
void CudaMoeLayer(const Options& options, Report& report);
void CudaExchange(const Options& options, Report& report);
void CudaRoofline(const Options& options, Report& report);

}  // namespace switchyard::bench
