// Experts of a model that does not fit the GPU: how many stay there, and how many the CPUs of the
// host get (serve --cpu-experts). Pure functions of sizes, but for ChooseCpuExpertsHere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/machine.h"
#include "engine/memory_plan.h"
#include "model/weight_bytes.h"

namespace switchyard {

// Tokens in the cache for which the GPU keeps room without --max-total-tokens.
inline constexpr int64_t kCacheBesideCpuExperts = 16384;

// The experts of each layer on one GPU and on one rank on CPUs (--device cuda,cpu), and the bytes
// of both sides.
struct ExpertSplit {
  EngineConfig config;          // of this layout
  int on_gpu = 0, on_cpus = 0;  // experts of each layer; on_cpus is 0 if all experts fit the GPU
  int64_t cache_tokens = 0;     // for which there is room; the plan also uses what is left
  WeightBytes gpu;              // weights of the GPU
  double cache = 0;             // of cache_tokens
  // Activations, scratch, exchange, recurrent states, and room for experts that arrive.
  double passes = 0;
  HostExpertBytes host;
  double gpu_budget = 0, host_budget = 0;  // what each side may take (MemoryBudget)

  double gpu_total() const { return gpu.total() + cache + passes; }
  bool fits_gpu() const { return gpu_total() <= gpu_budget; }
  bool fits_host() const { return on_cpus == 0 || host.total() <= host_budget; }
};

// The layout with the most experts on the GPU that leaves room for `cache_tokens`, or for what
// running requests can use if that is less. At least one expert of each layer is on the GPU; if
// this does not fit, fits_gpu() is false. `config`: of one rank without a layout;
// --chunked-prefill-size 0 means 2048 here, and --max-running-requests 0 means 32 with recurrent
// states. EPLB is enabled, so that the experts with most rows move to the GPU. `machine`: with the
// memory of a GPU, and of the host. Error kInvalid names what the layout does not support. The
// model must have experts.
ExpertSplit SplitExperts(const Machine& machine, const ModelConfig& model,
                         const EngineConfig& config, int64_t cache_tokens);

// The flags of the layout that differ from those of `config`.
std::string FlagsOfSplit(const EngineConfig& config, const ExpertSplit& split);

struct CpuExpertsChoice {
  EngineConfig config;             // the given one, or that of the chosen layout
  std::vector<std::string> lines;  // for the log: what was chosen, and why; empty: no choice
};

// The choice of `serve --cpu-experts auto`. Experts go to CPUs if `config` has one rank and
// --device auto, and the model has experts and does not fit the rank's GPU, even if no other
// process used it. What must fit: the weights, the passes of short chunks, and a cache of one page.
// With --max-total-tokens, the cache has this size, but at most 2048 tokens. Experts are divided by
// the memory that is free now.
//
// Otherwise the choice is `config`. MakePlan then refuses what is too large, and names the cause:
// other processes, or flags, also those that the layout does not support. Error kResource if the
// model does not fit with one page, and its experts do not fit the two sides either. It says how
// much each side needs and what to lower.
CpuExpertsChoice ChooseCpuExperts(const Machine& machine, const ModelConfig& model,
                                  const EngineConfig& config);

// ChooseCpuExperts for this machine. `config`: of a process that starts all ranks. Errors also as
// from MakePlan.
CpuExpertsChoice ChooseCpuExpertsHere(const EngineConfig& config);

}  // namespace switchyard
