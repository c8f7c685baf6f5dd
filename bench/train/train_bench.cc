// What a training step costs on CPUs, without the optimizer: forward and backward of micro-batches
// of packed sequences, and where the time goes. bench/train/train_torch.py measures the same shapes
// with PyTorch.
//
//   train_bench CONFIG.json [THREADS [SEQUENCES [LENGTH [MTP MODULES [float32|bfloat16]]]]]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "train/model.h"

namespace {

using namespace switchyard;
using namespace switchyard::train;
using Clock = std::chrono::steady_clock;

constexpr int kSteps = 7;  // the fastest is reported: other work on the machine only adds

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
  double forward[6] = {}, backward[6] = {}, heads = 0.0, total = 1e9;
  double cpu = 1e9;  // of all threads: what other work on the machine disturbs least
};

Times Step(Model<float>& model, const Batch& batch, Pass<float>* pass) {
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
  times.total = Seconds(begin);
  times.cpu = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
  return times;
}

void Run(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) {
    return argc > i ? std::atoi(argv[i]) : otherwise;
  };
  std::ifstream file(argv[1]);
  const std::string json((std::istreambuf_iterator<char>(file)), {});
  const ModelConfig config = ParseModelConfig(json);
  ThreadPool pool(number(2, 2));
  const auto exchange = MakeLocalExchange();
  const bool bf16 = argc > 6 && std::string_view(argv[6]) == "bfloat16";
  Model<float> model(config, {.mtp_layers = number(5, 0)}, {.exchange = exchange.get()}, pool, {},
                     bf16 ? ProductDtype::kBFloat16 : ProductDtype::kFloat32);
  model.Initialise(1, 0.02);
  size_t count = 0;
  for (const Parameter<float>* p : model.parameters()) count += p->value.size();
  const Batch batch = MakeBatch(number(3, 8), number(4, 256), config.vocab_size);
  Pass<float> pass;
  Times best;
  for (int i = 0; i < kSteps; ++i) {
    const Times times = Step(model, batch, &pass);
    const double cpu = std::min(best.cpu, times.cpu);
    if (times.total < best.total) best = times;
    best.cpu = cpu;
  }
  fmt::print(
      "{:.2f} M parameters, {} tokens in {} sequences, {} threads: {:.1f} ms, {:.0f} tokens/s, "
      "{:.0f} ms of CPU\n",
      static_cast<double>(count) * 1e-6, batch.size(), batch.sequences(), pool.num_threads(),
      best.total * 1e3, static_cast<double>(batch.size()) / best.total, best.cpu * 1e3);
  constexpr const char* kNames[] = {"attention", "dispatch", "shared",
                                    "experts",   "combine",  "finish"};
  for (int i = 0; i < 6; ++i) {
    fmt::print("  {:<10} forward {:7.2f} ms   backward {:7.2f} ms\n", kNames[i],
               best.forward[i] * 1e3, best.backward[i] * 1e3);
  }
  fmt::print("  {:<10} both    {:7.2f} ms\n", "heads", best.heads * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2)
      throw Invalid("train_bench: want CONFIG.json [THREADS [SEQUENCES [LENGTH [MTP [DTYPE]]]]]");
    Run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
  return 0;
}
