// The parts of `switchyard bench … --device cuda`; each is also a program of its own
// (standalone.cc) for those who tune it.
#pragma once

#include "bench/benches.h"
#include "bench/cuda/gpu_machine.h"

namespace switchyard::bench {

// Of `kernels`, on the current GPU, which `machine` describes.
void GroupedGemmBench(const Options& options, const GpuMachine& machine, Report& report);
void W4A16Bench(const Options& options, const GpuMachine& machine, Report& report);
void DenseGemmBench(const Options& options, const GpuMachine& machine, Report& report);
void AttentionBench(const Options& options, const GpuMachine& machine, Report& report);
void DeviceOpsBench(const Options& options, const GpuMachine& machine, Report& report);

// Of `exchange`. Returns bytes per second of a plain copy to a peer, all ranks at once.
double DispatchCombineBench(const Options& options, Report& report);
// `link`: bytes per second to a peer, 0: not known.
void CollectivesBench(const Options& options, double link, Report& report);

// Ranks of `exchange` and `moe-layer`: those asked for, or one for each GPU, `fewest` at least.
// Error kInvalid where there is no GPU.
int CudaRanks(const Options& options, int fewest);

}  // namespace switchyard::bench
