// The parts of `switchyard bench … --device cuda`. For kernel tuning each is also a program
// (standalone.cc).
#pragma once

#include "bench/benches.h"
#include "bench/cuda/gpu_machine.h"

namespace switchyard::bench {

// Parts of `kernels`, on the current GPU, which `machine` describes.
void GroupedGemmBench(const Options& options, const GpuMachine& machine, Report& report);
void W4A16Bench(const Options& options, const GpuMachine& machine, Report& report);
void ExpertChainBench(const Options& options, const GpuMachine& machine, Report& report);
void DenseGemmBench(const Options& options, const GpuMachine& machine, Report& report);
void AttentionBench(const Options& options, const GpuMachine& machine, Report& report);
void DeviceOpsBench(const Options& options, const GpuMachine& machine, Report& report);

// Kernels of training; a program of its own (bench/cuda/train_kernels.cu).
void TrainKernelsBench(const Options& options, const GpuMachine& machine, Report& report);

// A MoE layer of a GPU and the CPUs of its host, part by part; a program of its own. Option `model`
// selects another shape; `experts_per_rank` is the number of experts on the CPUs.
void HostExpertsBench(const Options& options, Report& report);

// Part of `exchange`. Returns the bytes per second of a plain copy to a peer, while all ranks copy.
double DispatchCombineBench(const Options& options, Report& report);
// `link`: bytes per second to a peer; 0: unknown.
void CollectivesBench(const Options& options, double link, Report& report);

// Ranks of `exchange` and `moe-layer`: --ranks, or one per GPU and at least `fewest`. Error
// kInvalid if there is no GPU.
int CudaRanks(const Options& options, int fewest);

}  // namespace switchyard::bench
