// Training steps on GPUs: forward and backward passes, clipping and AdamW of a model with random
// weights, with tokens/s of a GPU, the share of the product rate that the same run measures, and
// the memory. With several ranks also the time of their exchange. With --profile, Chrome traces of
// further steps, and how much of the messages is hidden. bench/train/train_torch_gpu.py measures
// the same steps on one GPU with PyTorch. Both derive weights and tokens from the same hash, so
// their losses can be compared.
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cuda/gpu_machine.h"
#include "comm/device/communicator.h"
#include "core/command_line.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/parallel.h"
#include "profile/message_overlap.h"
#include "profile/profiler.h"
#include "train/device/checks.h"
#include "train/device/cuda_ops.h"
#include "train/device/learner.h"
#include "train/device/ranks.h"
#include "train/gradients.h"
#include "train/model.h"
#include "train/optimizer/adamw.h"
#include "train/run/layout.h"

namespace {

using namespace switchyard;
using namespace switchyard::train;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string config;
  int gpu = 0, threads = 16, layers = 0, sequences = 4, length = 4096, per_pass = 1, steps = 8;
  int ranks = 1, ep = 1, zero_stage = 0, profile_steps = 2;
  std::string profile;  // directory of traces; empty: none
  std::string compute_dtype = "bfloat16";

  Layout layout() const { return {.ep = ep, .dp = ranks}; }
  bool fp8() const { return compute_dtype == "fp8"; }
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

// The sequences of a rank in a step, in micro-batches. A third of the tokens repeat their
// predecessor, so that there is something to learn.
std::vector<Batch> StepBatches(const Options& o, int step, int rank, int64_t vocab) {
  std::vector<Batch> batches;
  for (int first = 0; first < o.sequences; first += o.per_pass) {
    Batch batch;
    batch.begins = {0};
    for (int s = first; s < std::min(first + o.per_pass, o.sequences); ++s) {
      std::vector<int32_t> tokens;
      for (int t = 0; t <= o.length; ++t) {
        const int sequence = (step * o.ranks + rank) * o.sequences + s;
        const auto at = static_cast<uint32_t>(sequence * (o.length + 1) + t);
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

// Milliseconds of `work`, repeated until it has been enqueued `count` times.
template <typename Work>
double MillisecondsOf(kernels::Device& device, int count, const Work& work) {
  work();
  device.Synchronize();
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < count; ++i) work();
  device.Synchronize();
  return std::chrono::duration<double>(Clock::now() - begin).count() * 1e3 / count;
}

// The messages of a step, sent without computation: those of all MoE layers and micro-batches, and
// the sums of gradients.
struct MessageTimes {
  double rows = 0, gradients = 0;  // milliseconds
};
MessageTimes MeasureMessages(const Options& o, const ModelConfig& config, RankOps& rank,
                             TrainedModel& learner) {
  MessageTimes times;
  kernels::Device& device = rank.ops->device();
  times.gradients = MillisecondsOf(device, 5, [&] { learner.SumGradients(); });
  Collectives* const experts = rank.ranks->groups().experts;
  if (experts == nullptr) return times;
  const int64_t m = int64_t{o.per_pass} * o.length, floats = m * config.hidden;
  DeviceMemory memory(device);
  DeviceArray<BF16> mine(memory, floats), all(memory, o.ep * floats);
  DeviceArray<float> parts(memory, o.ep * floats), sum(memory, floats);
  const auto ranks = static_cast<size_t>(o.ep), count = static_cast<size_t>(floats);
  // FP8 rows: codes, and a float32 scale for each kFp8Block.
  const size_t row_bytes =
      o.fp8() ? count + count / kFp8Block * sizeof(float) : count * sizeof(BF16);
  const std::vector<size_t> bytes(ranks, row_bytes), counts(ranks, count);
  const double layer = MillisecondsOf(device, 20, [&] {  // forward and backward
    for (int pass = 0; pass < 2; ++pass) {
      rank.ranks->Fork();
      experts->AllGatherV(mine.data(), all.data(), bytes);
      experts->ReduceScatterV(parts.data(), sum.data(), counts);
      rank.ranks->Join();
    }
  });
  int layers = 0;
  for (const LayerConfig& l : config.layers) layers += l.moe ? 1 : 0;
  times.rows = layer * layers * ((o.sequences + o.per_pass - 1) / o.per_pass);
  return times;
}

void PrintProfile(profile::Profiler& profiler, const std::string& title) {
  const profile::Result result = profiler.Stop().value();
  if (!result.error.empty()) throw Resource("--profile: {}", result.error);
  fmt::print("{}: {} ({} events were dropped)\n{}", title, result.files.at(0), result.dropped,
             profile::Describe(profile::ReadMessageOverlap(result.files.at(0))));
  std::fflush(stdout);
}

void RunRank(const Options& options, int index, const std::shared_ptr<SharedArena>& arena) {
  const bool first = index == 0;
  const Layout layout = options.layout();
  const auto ranks = LayoutRanks::Create(arena, layout, index);
  bench::GpuMachine machine;
  if (first) {
    bench::Report report("", stdout, /*progress=*/false);
    machine = bench::MeasureGpuMachine(options.gpu, report);
  }
  std::ifstream file(options.config);
  nlohmann::json json = nlohmann::json::parse(file);
  if (options.layers > 0) json["num_hidden_layers"] = options.layers;
  const ModelConfig config = ParseModelConfig(json.dump());
  CheckLayout(layout, config);
  ThreadPool pool(options.threads);
  Model<float> model(config, {}, ranks->layer_ranks({.rank = ranks->place.ep, .size = options.ep}),
                     pool, {}, ProductDtype::kBFloat16);
  SetWeights(model, pool);
  if (options.zero_stage > 0) ShardMoments(model.parameters(), ranks->gradient_groups());
  int64_t matrices = 0, experts = 0, others = 0;
  for (const Parameter<float>* p : model.parameters()) {
    const auto count = static_cast<int64_t>(p->value.size());
    (p->expert ? experts : others) += count;
    if (!p->expert && p->shape.size() > 1 && p->name.find("embed_tokens") == std::string::npos)
      matrices += count;
  }
  experts *= options.ep;  // of all ranks
  RankOps rank = MakeCudaRankOps(options.gpu + index, *ranks);
  profile::Profiler profiler(index, ranks->place.Title());
  if (options.fp8()) CheckFp8Widths(config);
  DeviceLearner<BF16> learner(model, {.profiler = &profiler}, *rank.ops, *rank.ranks,
                              {.fp8 = options.fp8()});
  AdamW adam(model.parameters(), {});
  learner.update()->FromHost(&adam);

  const int64_t tokens = int64_t{options.sequences} * options.length;  // of a rank
  const auto all_tokens = static_cast<double>(tokens * options.ranks);
  const StepSize size{.targets = all_tokens, .tokens = all_tokens};
  std::vector<double> seconds;
  // Recorded steps come last, since marks of the streams take time.
  const int profiled = options.profile.empty() ? 0 : options.profile_steps;
  for (int step = 0; step <= options.steps + profiled; ++step) {
    if (step == options.steps + 1)
      profiler.Start({.dir = options.profile, .name = "train", .num_steps = profiled});
    const std::vector<Batch> batches = StepBatches(options, step, index, config.vocab_size);
    ranks->world->Barrier("step");
    const Clock::time_point begin = Clock::now();
    profile::Step recorded(&profiler);
    Losses losses = learner.Learn(batches, size);
    learner.SumGradients();
    const GradientNorm norm = learner.update()->Norm();
    learner.update()->Step(1e-4, ClipScale(norm.norm, 1.0), &adam);
    learner.GatherShards();
    learner.AfterStep(1.0);
    cuda::Check(cudaDeviceSynchronize(), "waiting for a step");
    recorded.End(profile::Stage::kTraining, tokens);
    ranks->world->Barrier("step");
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    auto loss = static_cast<float>(losses.main);
    ranks->world->AllReduceSum(&loss, 1);
    if (first)
      fmt::print("step {}: loss {:.5f}, gradient norm {:.5f}, {:.1f} ms\n", step + 1, loss,
                 norm.norm, took * 1e3);
    // The first one allocates.
    if (step > 0 && step <= options.steps) seconds.push_back(took);
  }
  size_t free = 0, total = 0;
  cuda::Check(cudaMemGetInfo(&free, &total), "reading the memory in use");
  const MessageTimes messages =
      options.ranks > 1 ? MeasureMessages(options, config, rank, learner) : MessageTimes();
  for (int turn = 0; turn < options.ranks && profiled > 0; ++turn) {
    if (turn == index) PrintProfile(profiler, ranks->place.Title());
    ranks->world->Barrier("profile");
  }
  if (!first) return;
  std::ranges::sort(seconds);
  const double median = seconds[seconds.size() / 2];
  const double flops =
      FlopsPerToken(config, matrices, experts, options.length) * static_cast<double>(tokens);
  fmt::print(
      "{} products, {:.2f} G parameters, {} ranks, ep {}, {} sequences of {} tokens for each: "
      "median {:.1f} ms, "
      "{:.0f} tokens/s of a GPU, {:.1f} TFLOP/s, {:.1f} % of the measured product rate ({:.0f} "
      "TFLOP/s); {:.1f} GiB in use\n",
      options.compute_dtype, static_cast<double>(others + experts) * 1e-9, options.ranks,
      options.ep, options.sequences, options.length, median * 1e3,
      static_cast<double>(tokens) / median, flops / median * 1e-12,
      100 * flops / median / machine.bf16, machine.bf16 * 1e-12,
      static_cast<double>(total - free) / (1 << 30));
  if (options.ranks > 1)
    fmt::print(
        "without computation, a step's exchange of rows takes {:.1f} ms ({:.1f} %), its sums of "
        "gradients {:.1f} ms ({:.1f} %)\n",
        messages.rows, messages.rows / median * 0.1, messages.gradients,
        messages.gradients / median * 0.1);
}

// Runs each rank in a process: see MakeCudaRanks. Nothing before uses CUDA, which does not survive
// a fork. Returns the exit status.
int Run(const Options& options) {
  const Layout layout = options.layout();
  constexpr size_t kSlack = 4096;  // bytes for alignment
  const auto arena =
      SharedArena::Create(layout.ranks(), LayoutRanks::BytesPerRank(layout) +
                                              RankComm::BytesPerRank(DeviceMesh(layout)) + kSlack);
  const auto run = [&](int rank) {
    try {
      RunRank(options, rank, arena);
    } catch (const std::exception& error) {
      fmt::print(stderr, "rank {}: {}\n", rank, error.what());
      arena->Abort(fmt::format("rank {} failed: {}", rank, error.what()));
      return 2;
    }
    return 0;
  };
  if (options.ranks == 1) return run(0);
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) throw Error(ErrorKind::kResource, "a rank's process cannot be started");
    if (child > 0) continue;
    const int status = run(rank);
    std::fflush(nullptr);
    _exit(status);
  }
  int worst = 0, status = 0;
  while (wait(&status) > 0) worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine app("Measure training steps on GPUs.");
  Options o;
  app.Option("config", o.config, "config.json of the model").Required().ExistingFile();
  app.Option("--layers", o.layers, "layers to keep; 0: all").ShowDefault().NonNegative();
  app.Option("--ranks", o.ranks, "ranks, each with a GPU and its own rows")
      .ShowDefault()
      .Positive();
  app.Option("--ep", o.ep, "ranks that divide the experts").ShowDefault().Positive();
  app.Option("--zero-stage", o.zero_stage, "1: copies share the moments")
      .ShowDefault()
      .NonNegative();
  app.Option("--compute-dtype", o.compute_dtype, "operands of products: bfloat16, or fp8")
      .ShowDefault()
      .OneOf({"bfloat16", "fp8"});
  app.Option("--sequences", o.sequences, "sequences per step and rank").ShowDefault().Positive();
  app.Option("--length", o.length, "tokens per sequence").ShowDefault().Positive();
  app.Option("--per-pass", o.per_pass, "sequences per micro-batch").ShowDefault().Positive();
  app.Option("--steps", o.steps, "measured steps, after one warm-up step").ShowDefault().Positive();
  app.Option(
      "--profile", o.profile,
      "also record steps, write a Chrome trace of each rank to this directory, and print how "
      "much of the messages is hidden behind computation");
  app.Option("--profile-steps", o.profile_steps, "steps of --profile").ShowDefault().Positive();
  app.Option("--gpu", o.gpu, "index of the first GPU").ShowDefault().NonNegative();
  app.Option("--threads", o.threads, "CPU threads that set the weights").ShowDefault().Positive();
  if (const auto code = app.ParseMain(argc, argv)) return *code;
  try {
    return Run(o);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
