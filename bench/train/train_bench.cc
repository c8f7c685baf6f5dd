// Cost of a training step on CPUs: forward and backward of a batch of packed sequences, gradient
// clipping and AdamW, with the time of each part. bench/train/train_torch.py measures the same
// steps with PyTorch.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "core/command_line.h"
#include "train/model.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/catalog.h"

namespace {

using namespace switchyard;
using namespace switchyard::train;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string config, compute_dtype = "float32";
  int threads = 2, sequences = 8, length = 256, mtp = 0, steps = 15;
};

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

Batch MakeBatch(int sequences, int length, int64_t vocab) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(vocab) - 1);
  Batch batch;
  batch.begins = {0};
  for (int s = 0; s < sequences; ++s) {
    for (int t = 0; t < length; ++t) {
      batch.tokens.push_back(token(random));
      batch.targets.push_back(token(random));
    }
    batch.begins.push_back(static_cast<int32_t>(batch.size()));
  }
  return batch;
}

struct Times {
  double forward[6] = {}, backward[6] = {}, heads = 0.0, optimizer = 0.0, total = 0.0;
  double cpu = 0.0;  // CPU time of all threads; other work on the machine disturbs it least
};

struct Optimizer {
  Catalog catalog;
  AdamW adam;
};

Times Step(Model<float>& model, const Batch& batch, Pass<float>* pass, Optimizer& optimizer,
           ThreadPool& pool) {
  Times times;
  const StepSize size{.targets = static_cast<double>(batch.size()),
                      .tokens = static_cast<double>(batch.size())};
  const Clock::time_point begin = Clock::now();
  const std::clock_t cpu = std::clock();
  Clock::time_point last = begin;
  const auto lap = [&] {
    const double seconds = Seconds(last);
    last = Clock::now();
    return seconds;
  };
  model.Begin(batch, size, pass);
  for (int64_t l = 0; l < model.layers(); ++l) {
    for (int i = 0; i < 6; ++i) {
      model.Forward(l, static_cast<Phase>(i), pass);
      times.forward[i] += lap();
    }
  }
  model.Heads(true, pass);
  times.heads = lap();
  for (int64_t l = model.layers() - 1; l >= 0; --l) {
    for (const int i : {5, 4, 2, 3, 1, 0}) {
      model.Backward(l, static_cast<Phase>(i), pass);
      times.backward[i] += lap();
    }
  }
  const GradientNorm gradient = NormOfGradients(optimizer.catalog, pool);
  optimizer.adam.Step(1e-4, ClipScale(gradient.norm, 1.0), pool);
  times.optimizer = lap();
  times.total = Seconds(begin);
  times.cpu = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
  return times;
}

void Print(const Options& options, double parameters, const Batch& batch,
           std::vector<Times> steps) {
  std::vector<double> cpu;
  cpu.reserve(steps.size());
  for (const Times& t : steps) cpu.push_back(t.cpu);
  std::sort(cpu.begin(), cpu.end());
  std::sort(steps.begin(), steps.end(),
            [](const Times& a, const Times& b) { return a.total < b.total; });
  const Times &least = steps.front(), &median = steps[steps.size() / 2];
  const auto rate = [&](double seconds) { return static_cast<double>(batch.size()) / seconds; };
  fmt::print(
      "{:.2f} M parameters, {} tokens in {} sequences, {} threads, {}: median {:.1f} ms, {:.0f} "
      "tokens/s (fastest {:.1f} ms, {:.0f} tokens/s); CPU time: median {:.0f} ms, minimum {:.0f} "
      "ms\n",
      parameters * 1e-6, batch.size(), batch.sequences(), options.threads, options.compute_dtype,
      median.total * 1e3, rate(median.total), least.total * 1e3, rate(least.total),
      cpu[cpu.size() / 2] * 1e3, cpu.front() * 1e3);
  constexpr const char* kNames[] = {"attention", "dispatch", "shared",
                                    "experts",   "combine",  "finish"};
  for (int i = 0; i < 6; ++i) {
    fmt::print("  {:<10} forward {:7.2f} ms   backward {:7.2f} ms\n", kNames[i],
               median.forward[i] * 1e3, median.backward[i] * 1e3);
  }
  fmt::print("  {:<10} both    {:7.2f} ms\n", "heads", median.heads * 1e3);
  fmt::print("  {:<10}         {:7.2f} ms\n", "optimizer", median.optimizer * 1e3);
}

void Run(const Options& options) {
  std::ifstream file(options.config);
  const std::string json((std::istreambuf_iterator<char>(file)), {});
  const ModelConfig config = ParseModelConfig(json);
  ThreadPool pool(options.threads);
  Model<float> model(
      config, {.mtp_layers = options.mtp}, {}, pool, {},
      options.compute_dtype == "bfloat16" ? ProductDtype::kBFloat16 : ProductDtype::kFloat32);
  model.Initialise(1, 0.02);
  size_t count = 0;
  for (const Parameter<float>* p : model.parameters()) count += p->value.size();
  Optimizer optimizer{Catalog(model.parameters(), nullptr), AdamW(model.parameters(), {})};
  const Batch batch = MakeBatch(options.sequences, options.length, config.vocab_size);
  Pass<float> pass;
  std::vector<Times> steps;
  for (int i = 0; i <= options.steps; ++i) {
    const Times times = Step(model, batch, &pass, optimizer, pool);
    if (i > 0) steps.push_back(times);  // the first one allocates
  }
  Print(options, static_cast<double>(count), batch, steps);
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine app("Measure a training step: forward, backward, gradient clipping and AdamW.");
  Options options;
  app.Option("config", options.config, "config.json of the model").Required().ExistingFile();
  app.Option("--threads", options.threads).ShowDefault().Positive();
  app.Option("--sequences", options.sequences, "sequences per step").ShowDefault().Positive();
  app.Option("--length", options.length, "tokens per sequence").ShowDefault().Positive();
  app.Option("--mtp", options.mtp, "multi-token prediction (MTP) modules")
      .ShowDefault()
      .NonNegative();
  app.Option("--compute-dtype", options.compute_dtype,
             "number format of the linear layers' products")
      .ShowDefault()
      .OneOf({"float32", "bfloat16"});
  app.Option("--steps", options.steps, "measured steps, after one warm-up step")
      .ShowDefault()
      .Positive();
  if (const auto code = app.ParseMain(argc, argv)) return *code;
  try {
    Run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
  return 0;
}
