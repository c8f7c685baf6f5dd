// Training steps on one GPU: forward and backward passes, clipping and AdamW of a model with random
// weights, with tokens/s, the share of the product rate that the same run measures, and the memory.
// bench/train/train_torch_gpu.py measures the same steps with PyTorch. Both derive weights and
// tokens from the same hash, so their losses can be compared.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cuda/gpu_machine.h"
#include "core/command_line.h"
#include "core/cuda/runtime.h"
#include "core/parallel.h"
#include "train/device/cuda_ops.h"
#include "train/device/learner.h"
#include "train/model.h"
#include "train/optimizer/adamw.h"

namespace {

using namespace switchyard;
using namespace switchyard::train;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string config;
  int gpu = 0, threads = 16, layers = 0, sequences = 4, length = 4096, per_pass = 1, steps = 8;
};

// "lowbias32" by Chris Wellons.
uint32_t Hash(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

uint32_t SeedOf(std::string_view name) {  // FNV-1a
  uint32_t seed = 2166136261U;
  for (const char c : name) seed = (seed ^ static_cast<uint8_t>(c)) * 16777619U;
  return seed;
}

// Norms are 1. Elements of matrices are uniform in ±√3 · 0.02.
void SetWeights(Model<float>& model, ThreadPool& pool) {
  for (Parameter<float>* p : model.parameters()) {
    const uint32_t seed = SeedOf(p->name);
    const bool matrix = p->shape.size() > 1;
    const auto count = static_cast<int64_t>(p->value.size());
    pool.RunRanges(count, 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint32_t bits = Hash(static_cast<uint32_t>(i) + seed);
        const double unit = static_cast<double>(bits) / 4294967296.0;  // [0, 1)
        p->value[i] = matrix ? static_cast<float>((2 * unit - 1) * 0.0346410162) : 1.0f;
      }
    });
  }
}

// The sequences of a step, in micro-batches. A third of the tokens repeat their predecessor, so
// that there is something to learn.
std::vector<Batch> StepBatches(const Options& o, int step, int64_t vocab) {
  std::vector<Batch> batches;
  for (int first = 0; first < o.sequences; first += o.per_pass) {
    Batch batch;
    batch.begins = {0};
    for (int s = first; s < std::min(first + o.per_pass, o.sequences); ++s) {
      std::vector<int32_t> tokens;
      for (int t = 0; t <= o.length; ++t) {
        const auto at = static_cast<uint32_t>((step * o.sequences + s) * (o.length + 1) + t);
        const uint32_t bits = Hash(at + 12345);
        const bool repeats = t > 0 && bits % 3 == 0;
        tokens.push_back(repeats ? tokens.back()
                                 : static_cast<int32_t>(bits / 3 % static_cast<uint32_t>(vocab)));
      }
      batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end() - 1);
      batch.targets.insert(batch.targets.end(), tokens.begin() + 1, tokens.end());
      batch.begins.push_back(static_cast<int32_t>(batch.size()));
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

// Floating-point operations of forward and backward pass for a token: three times those of the
// forward products. Causal attention counts half of its products.
double FlopsPerToken(const ModelConfig& c, int64_t matrix_parameters, int64_t expert_parameters,
                     int length) {
  const double share = c.moe ? static_cast<double>(c.moe->router.top_k) /
                                   static_cast<double>(c.moe->router.num_experts)
                             : 0.0;
  const double experts = static_cast<double>(expert_parameters) * share;
  const double attention =
      2.0 * length * static_cast<double>(c.num_layers() * c.attention.heads * c.attention.head_dim);
  return 3.0 * (2.0 * (static_cast<double>(matrix_parameters) + experts) + attention);
}

void Run(const Options& options) {
  bench::Report report("", stdout, /*progress=*/false);
  const bench::GpuMachine machine = bench::MeasureGpuMachine(options.gpu, report);
  std::ifstream file(options.config);
  nlohmann::json json = nlohmann::json::parse(file);
  if (options.layers > 0) json["num_hidden_layers"] = options.layers;
  const ModelConfig config = ParseModelConfig(json.dump());
  ThreadPool pool(options.threads);
  Model<float> model(config, {}, {}, pool, {}, ProductDtype::kBFloat16);
  SetWeights(model, pool);
  int64_t matrices = 0, experts = 0, all = 0;
  for (const Parameter<float>* p : model.parameters()) {
    const auto count = static_cast<int64_t>(p->value.size());
    all += count;
    if (p->expert) {
      experts += count;
    } else if (p->shape.size() > 1 && p->name.find("embed_tokens") == std::string::npos) {
      matrices += count;
    }
  }
  const auto ops = MakeCudaOps(options.gpu);
  DeviceLearner<BF16> learner(model, {}, *ops);
  AdamW adam(model.parameters(), {});
  learner.update()->FromHost(&adam);

  const int64_t tokens = int64_t{options.sequences} * options.length;
  const StepSize size{.targets = static_cast<double>(tokens),
                      .tokens = static_cast<double>(tokens)};
  std::vector<double> seconds;
  for (int step = 0; step <= options.steps; ++step) {
    const std::vector<Batch> batches = StepBatches(options, step, config.vocab_size);
    const Clock::time_point begin = Clock::now();
    const Losses losses = learner.Learn(batches, size);
    const GradientNorm norm = learner.update()->Norm();
    learner.update()->Step(1e-4, ClipScale(norm.norm, 1.0), &adam);
    learner.AfterStep(1.0);
    cuda::Check(cudaDeviceSynchronize(), "waiting for a step");
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    fmt::print("step {}: loss {:.5f}, gradient norm {:.5f}, {:.1f} ms\n", step + 1, losses.main,
               norm.norm, took * 1e3);
    if (step > 0) seconds.push_back(took);  // the first one allocates
  }
  std::ranges::sort(seconds);
  const double median = seconds[seconds.size() / 2];
  const double flops =
      FlopsPerToken(config, matrices, experts, options.length) * static_cast<double>(tokens);
  size_t free = 0, total = 0;
  cuda::Check(cudaMemGetInfo(&free, &total), "reading the memory in use");
  fmt::print(
      "{:.2f} G parameters, {} sequences of {} tokens: median {:.1f} ms, {:.0f} tokens/s, {:.1f} "
      "TFLOP/s, {:.1f} % of the measured product rate ({:.0f} TFLOP/s); {:.1f} GiB in use\n",
      static_cast<double>(all) * 1e-9, options.sequences, options.length, median * 1e3,
      static_cast<double>(tokens) / median, flops / median * 1e-12,
      100 * flops / median / machine.bf16, machine.bf16 * 1e-12,
      static_cast<double>(total - free) / (1 << 30));
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine app("Measure training steps on one GPU.");
  Options o;
  app.Option("config", o.config, "config.json of the model").Required().ExistingFile();
  app.Option("--layers", o.layers, "layers to keep; 0: all").ShowDefault().NonNegative();
  app.Option("--sequences", o.sequences, "sequences per step").ShowDefault().Positive();
  app.Option("--length", o.length, "tokens per sequence").ShowDefault().Positive();
  app.Option("--per-pass", o.per_pass, "sequences per micro-batch").ShowDefault().Positive();
  app.Option("--steps", o.steps, "measured steps, after one warm-up step").ShowDefault().Positive();
  app.Option("--gpu", o.gpu, "index of the GPU").ShowDefault().NonNegative();
  app.Option("--threads", o.threads, "CPU threads that set the weights").ShowDefault().Positive();
  if (const auto code = app.ParseMain(argc, argv)) return *code;
  try {
    Run(o);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
  return 0;
}
