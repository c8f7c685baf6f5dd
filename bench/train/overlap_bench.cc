// Measures how much of the latency of a slow exchange a training step hides. Whole steps of several
// micro-batches run with the plain and the overlapped schedule, over the asynchronous and the
// pairwise exchange, on two ranks of one thread each. A delay is added to every exchange. A further
// case also overlaps the gradient all-reduces with the backward pass.
//
// Every round runs a step of each kind, so that other load on the machine disturbs all kinds
// equally. The printed times are medians over the rounds. "hidden" is 1 - added / sum. `added` is
// the extra time of a step with delays; `sum` is the sum of the delays of all its exchanges.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "core/command_line.h"
#include "train/exchange/delayed_dispatcher.h"
#include "train/exchange/expert_exchange.h"
#include "train/run/layout.h"

namespace {

using namespace switchyard;
using namespace switchyard::train;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 2;
const Layout kLayout{.ep = kRanks, .dp = kRanks};
constexpr int kDelays[] = {0, 2, 4, 8};  // milliseconds

struct Variant {
  const char* name;
  schedule::Order order;
  bool early_sums;
};
constexpr Variant kVariants[] = {{"plain", schedule::Order::kPlain, false},
                                 {"overlapped", schedule::Order::kOverlapped, false},
                                 {"early sums", schedule::Order::kOverlapped, true}};

struct Shape {
  std::string config;
  int micro_batches = 8, sequences = 2, length = 256, rounds = 9;
};

// [variants][delays][rounds] milliseconds of a step.
using Times = std::vector<std::vector<std::vector<double>>>;

Batch MakeBatch(const Shape& shape, int64_t vocab, int rank) {
  Batch batch;
  batch.begins = {0};
  for (int s = 0; s < shape.sequences; ++s) {
    for (int t = 0; t < shape.length; ++t) {
      batch.tokens.push_back(static_cast<int32_t>((s * 7919 + t * 104729 + rank * 31) % vocab));
      batch.targets.push_back(static_cast<int32_t>((s * 1299709 + t * 15485863) % vocab));
    }
    batch.begins.push_back(static_cast<int32_t>(batch.size()));
  }
  return batch;
}

// Shows progress if stderr is a terminal.
void Progress(bool synchronous, int round, int rounds) {
  if (isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r{}: round {} of {} ", synchronous ? "pairwise" : "asynchronous",
             std::max(round + 1, 0), rounds);
}

Times Measure(const ModelConfig& config, const Shape& shape, bool synchronous) {
  const int64_t tokens = int64_t{shape.sequences} * shape.length;
  const ExpertExchangeOptions options{.tokens = tokens, .synchronous = synchronous};
  Times times(std::size(kVariants), std::vector<std::vector<double>>(std::size(kDelays)));
  const size_t bytes = LayoutRanks::BytesPerRank(kLayout) + 4096;
  const auto sums = SharedArena::Create(kRanks, bytes);
  RunRankThreads(
      kRanks, bytes + ExpertExchange::BytesPerRank(kRanks, config, options),
      [&](int rank, const std::shared_ptr<SharedArena>& arena) {
        const auto ranks = LayoutRanks::Create(arena, kLayout, rank);
        ExchangeDelay delay{.synchronous = synchronous};
        ThreadPool pool(1);
        const ExpertExchange exchange(*ranks->memory, ranks->place.EpGroup(), config, options,
                                      pool);
        ExpertRanks experts = exchange.ranks();
        DelayedDispatcher delayed(*experts.dispatcher, delay);
        experts.dispatcher = &delayed;
        const LearnerLinks late(*ranks, 0), early(*ranks, 0, {}, sums);
        Model<float> model(config, {}, ranks->layer_ranks(experts), pool);
        model.Initialise(1, 0.02);
        std::vector<std::unique_ptr<Learner>> learners;
        for (const Variant& v : kVariants) {
          learners.push_back(std::make_unique<Learner>(model, LearnerOptions{.order = v.order},
                                                       (v.early_sums ? early : late).ranks()));
        }
        const std::vector<Batch> batches(static_cast<size_t>(shape.micro_batches),
                                         MakeBatch(shape, config.vocab_size, rank));
        const double all = static_cast<double>(kRanks * tokens) * shape.micro_batches;
        for (int round = -1; round < shape.rounds; ++round) {  // the first is a warm-up
          if (rank == 0) Progress(synchronous, round, shape.rounds);
          for (size_t w = 0; w < std::size(kVariants); ++w) {
            for (size_t d = 0; d < std::size(kDelays); ++d) {
              delay.delay = std::chrono::milliseconds(kDelays[d]);
              model.ClearGradients();
              ranks->world->Barrier("step");
              const Clock::time_point begin = Clock::now();
              learners[w]->Learn(batches, {.targets = all, .tokens = all});
              ranks->world->Barrier("step");
              const std::chrono::duration<double, std::milli> time = Clock::now() - begin;
              if (rank == 0 && round >= 0) times[w][d].push_back(time.count());
            }
          }
        }
      });
  return times;
}

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<int64_t>(values.size() / 2));
  return values[values.size() / 2];
}

void Run(const Shape& shape) {
  std::ifstream file(shape.config);
  const ModelConfig config =
      ParseModelConfig(std::string((std::istreambuf_iterator<char>(file)), {}));
  const auto moe = std::ranges::count(config.layers, true, &LayerConfig::moe);
  const auto exchanges = 4 * moe * shape.micro_batches;
  fmt::print("{} micro-batches of {} x {} tokens on each of {} ranks, {} exchanges per step\n",
             shape.micro_batches, shape.sequences, shape.length, kRanks, exchanges);
  fmt::print("{:<14} {:<11} {:>8} {:>12} {:>10} {:>8}\n", "exchange", "way", "delay", "step",
             "added", "hidden");
  for (const bool synchronous : {false, true}) {
    const Times times = Measure(config, shape, synchronous);
    for (size_t w = 0; w < std::size(kVariants); ++w) {
      const double base = Median(times[w][0]);
      for (size_t d = 0; d < std::size(kDelays); ++d) {
        const double step = Median(times[w][d]);
        const double all = static_cast<double>(exchanges) * kDelays[d];
        fmt::print("{:<14} {:<11} {:>5} ms {:>9.0f} ms {:>7.0f} ms {:>8}\n",
                   synchronous ? "pairwise" : "asynchronous", kVariants[w].name, kDelays[d], step,
                   step - base,
                   d == 0 ? "" : fmt::format("{:.0f} %", 100.0 * (1.0 - (step - base) / all)));
      }
    }
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine app(
      "Measure how much exchange latency a training step hides: 2 ranks, delays of 2, 4, 8 ms.");
  Shape shape;
  app.Option("config", shape.config, "config.json of the model").Required().ExistingFile();
  const auto number = [&](const char* name, int& value, const char* what) {
    app.Option(name, value, what).ShowDefault().Positive();
  };
  number("--micro-batches", shape.micro_batches, "micro-batches of a step");
  number("--sequences", shape.sequences, "sequences of a micro-batch on each rank");
  number("--length", shape.length, "tokens per sequence");
  number("--rounds", shape.rounds, "rounds of 24 steps; medians over rounds are printed");
  if (const auto code = app.ParseMain(argc, argv)) return *code;
  try {
    Run(shape);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
  return 0;
}
