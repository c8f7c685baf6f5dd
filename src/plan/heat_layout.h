// Experts of one GPU and of the CPUs of its host, placed by heat: what fits, and times of steps.
//
// The memory is that of `serve`, which chooses the same numbers of experts (engine/cpu_experts.h).
// The times come from rates of kernels and of memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/cpu_experts.h"
#include "plan/cost_table.h"
#include "plan/step_cost.h"

namespace switchyard::plan {

struct HeatQuestion {
  EngineConfig config;    // of one rank; --mem-fraction-static applies to both sides
  ModelConfig model;      // as ranks on GPUs read it
  ModelConfig cpu_model;  // as ranks on CPUs read it
  CostTable gpu, cpu;
  bool packs_experts = true;                  // the GPU keeps 4-bit experts packed
  double gpu_memory = 0, host_memory = 0;     // bytes
  Link link{.seconds = 10e-6, .rate = 25e9};  // between the GPU and the host's memory
  std::string expert_loads = "zipf:1";        // ExpertLoadOptions::source; no recordings
  int64_t cache_tokens = kCacheBesideCpuExperts;
};

// Memory in bytes. Each layer with experts has the same number of experts on the GPU.
struct HeatMemory {
  double weights = 0;    // of the GPU, without routed experts
  double embedding = 0;  // of them: read in rows only
  double cache = 0;
  int64_t cache_tokens = 0;               // HeatQuestion::cache_tokens, or what requests can use
  double passes = 0;                      // and exchange buffers
  double gpu_expert = 0, cpu_expert = 0;  // one expert
  int layers = 0, experts = 0;            // layers with experts, and the experts of each
  int on_gpu = 0;                         // experts of a layer on the GPU, the most popular ones
  double host_buffers = 0;                // experts' rows and exchange buffers of the host
  double gpu_budget = 0, host_budget = 0;
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
  // Sum over steps of max(bytes of the GPU / its bandwidth, bytes of the host / its bandwidth).
  double bound = 0;
};

class HeatLayout {
 public:
  // Error kInvalid: the model has no experts, or linear attention; or the source of loads is a
  // recording; or the layout does not support a flag. Error kResource names what does not fit and
  // what to lower: --memory (the GPU with one expert of each layer) or --host-memory.
  explicit HeatLayout(HeatQuestion question);
  HeatLayout(const HeatLayout&) = delete;
  HeatLayout& operator=(const HeatLayout&) = delete;

  const HeatQuestion& question() const { return q_; }
  const HeatMemory& memory() const { return memory_; }
  // Of `serve`; empty if all experts fit the GPU.
  const std::string& serve_flags() const { return serve_flags_; }
  // [experts] the fraction of tokens that choose the expert, most popular first.
  std::span<const double> popularity() const { return popularity_; }

  // A step in which `sequences` sequences decode, with `keys` keys each.
  HeatTime Decode(double sequences, double keys, ExpertsPlacedBy by = ExpertsPlacedBy::kHeat) const;
  // The steps of a prompt, in chunks of --chunked-prefill-size. With `streams`
  // (--stream-experts), the experts of the CPU in a layer are computed there, or by the GPU while
  // it reads their weights over the link, whichever is faster.
  HeatTime Prefill(double rows, ExpertsPlacedBy by = ExpertsPlacedBy::kHeat,
                   bool streams = false) const;

 private:
  // Work of some experts in one layer.
  struct Work {
    double rows = 0;  // pairs of a token and an expert
    double used = 0;  // experts with rows
  };
  Work WorkOf(double tokens, size_t begin, size_t end) const;
  double Seconds(const Work& work, const CostTable& table, const MatrixFormat& format) const;
  double LinkSeconds(const Work& work, double tokens) const;
  HeatTime Step(const StepShape& shape, ExpertsPlacedBy by, bool streams) const;
  // Adds a layer with the `on_gpu` most popular experts on the GPU.
  void AddLayer(const StepShape& shape, int on_gpu, double shared, bool streams,
                HeatTime* time) const;
  void PlanMemory();

  const HeatQuestion q_;
  const ModelFormats gpu_formats_, cpu_formats_;
  StepCosts costs_;  // of the GPU
  HeatMemory memory_;
  std::string serve_flags_;
  double chunk_ = 0;  // rows of a step of a prompt
  std::vector<double> popularity_;
  double top_k_ = 0;
};

// Memory, and tokens per second of decode at batches 1, 8 and 32 and of prompts of 512 and 4096
// tokens, beside the bound and a placement by layers.
std::string HeatReport(const HeatLayout& layout);

}  // namespace switchyard::plan
