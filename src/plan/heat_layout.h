// Experts of one GPU and of the CPUs of its host, placed by heat: what fits, and times of steps.
//
// A design on paper: `serve` does not run it yet (docs/notes/unequal_ranks.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/config.h"
#include "plan/cost_table.h"
#include "plan/step_cost.h"

namespace switchyard::plan {

struct HeatQuestion {
  EngineConfig config;    // precision, context and chunk; --mem-fraction-static applies to the GPU
  ModelConfig model;      // as ranks on GPUs read it
  ModelConfig cpu_model;  // as ranks on CPUs read it
  CostTable gpu, cpu;
  bool packs_experts = true;                  // the GPU keeps 4-bit experts packed
  double gpu_memory = 0, host_memory = 0;     // bytes
  Link link{.seconds = 10e-6, .rate = 25e9};  // between the GPU and the host's memory
  std::string expert_loads = "zipf:1";        // ExpertLoadOptions::source; no recordings
  int64_t cache_tokens = 16384;               // tokens in the cache
};

// Memory in bytes. Each layer with experts has the same number of experts on the GPU.
struct HeatMemory {
  double weights = 0;    // of the GPU, without routed experts
  double embedding = 0;  // of them: read in rows only
  double cache = 0, passes = 0;
  double gpu_expert = 0, cpu_expert = 0;  // one expert
  int layers = 0, experts = 0;            // layers with experts, and the experts of each
  int on_gpu = 0;                         // experts of a layer on the GPU, the most popular ones
  double gpu_total() const { return weights + cache + passes + gpu_expert * on_gpu * layers; }
  double host_total() const { return cpu_expert * (experts - on_gpu) * layers; }
};

enum class ExpertsPlacedBy : uint8_t {
  kHeat,    // in each layer the most popular experts are on the GPU
  kLayers,  // all experts of the first layers are on the GPU, as many as fit
};

// The time of a step.
struct HeatTime {
  double seconds = 0;
  double other = 0;  // of it: all but routed experts
  // Times of the experts of all layers on each device, which overlap within a layer. link: of the
  // rows that cross the link, which are part of `cpu`, and of weights that the GPU reads over it.
  double gpu = 0, cpu = 0, link = 0;
  int streamed = 0;  // layers whose experts of the CPU are computed by the GPU, which reads them
  double bound = 0;  // max(bytes of the GPU / its bandwidth, bytes of the host / its bandwidth)
};

class HeatLayout {
 public:
  // Error kInvalid: the model has no experts, or recurrent states; or the source of loads is a
  // recording. Error kResource names what does not fit and what to lower: --memory (the GPU without
  // any expert) or --host-memory.
  explicit HeatLayout(HeatQuestion question);
  HeatLayout(const HeatLayout&) = delete;
  HeatLayout& operator=(const HeatLayout&) = delete;

  const HeatQuestion& question() const { return q_; }
  const HeatMemory& memory() const { return memory_; }
  // [experts] the fraction of tokens that choose the expert, most popular first.
  std::span<const double> popularity() const { return popularity_; }

  // A step in which `sequences` sequences decode, with `keys` keys each.
  HeatTime Decode(double sequences, double keys, ExpertsPlacedBy by = ExpertsPlacedBy::kHeat) const;
  // A step with a chunk of a prompt, which is its beginning. In each layer, the experts of the CPU
  // are computed there, or by the GPU while it reads their weights over the link, whichever is
  // faster.
  HeatTime Prefill(double rows, ExpertsPlacedBy by = ExpertsPlacedBy::kHeat) const;

 private:
  // Work of some experts in one layer.
  struct Work {
    double rows = 0;  // pairs of a token and an expert
    double used = 0;  // experts with rows
  };
  Work WorkOf(double tokens, size_t begin, size_t end) const;
  double Seconds(const Work& work, const CostTable& table, const MatrixFormat& format) const;
  double LinkSeconds(const Work& work, double tokens) const;
  HeatTime Step(const StepShape& shape, ExpertsPlacedBy by) const;
  // Adds a layer with the `on_gpu` most popular experts on the GPU.
  void AddLayer(const StepShape& shape, int on_gpu, double shared, HeatTime* time) const;
  void PlanMemory();

  const HeatQuestion q_;
  const ModelFormats gpu_formats_, cpu_formats_;
  StepCosts costs_;  // of the GPU
  HeatMemory memory_;
  std::vector<double> popularity_;
  double top_k_ = 0;
};

// Memory, and tokens per second of decode at batches 1, 8 and 32 and of prompts of 512 and 4096
// tokens, beside the bound and a placement by layers.
std::string HeatReport(const HeatLayout& layout);

}  // namespace switchyard::plan
