// How much of a slow exchange a training step hides: whole steps of several micro-batches, plain
// and overlapped, over the asynchronous and the pairwise exchange, on two ranks of one thread each,
// with an added delay for every exchange.
//
//   overlap_bench CONFIG.json [MICRO-BATCHES [SEQUENCES [LENGTH [ROUNDS]]]]
//
// Every round runs a step of each kind, so that other work on the machine disturbs all alike; what
// is printed are medians over the rounds. "hidden": the part of all exchanges' delays, one after
// the other, by which the step did not become longer.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "core/error.h"
#include "train/exchange/delayed_exchange.h"
#include "train/run/learner.h"

namespace {

using namespace switchyard;
using namespace switchyard::train;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 2;
constexpr overlap::Order kOrders[] = {overlap::Order::kPlain, overlap::Order::kOverlapped};
constexpr int kDelays[] = {0, 2, 4, 8};  // milliseconds

struct Shape {
  int micro_batches, sequences, length, rounds;
};

// [orders][delays] milliseconds of each round.
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

Times Measure(const ModelConfig& config, const Shape& shape, bool synchronous) {
  const MeshShape mesh{.tp = kRanks, .ep = kRanks};
  const int64_t tokens = int64_t{shape.sequences} * shape.length;
  const RowExchangeOptions options{
      .message_bytes = MoeMessageBytes(config, kRanks, tokens, sizeof(float)),
      .synchronous = synchronous};
  Times times(std::size(kOrders), std::vector<std::vector<double>>(std::size(kDelays)));
  RunRankThreads(kRanks, RankComm::BytesPerRank(mesh) + RowExchangeBytes(kRanks, options) + 4096,
                 [&](int rank, const std::shared_ptr<SharedArena>& arena) {
                   const auto comm = RankComm::Create(arena, mesh, rank);
                   ExchangeDelay delay{.synchronous = synchronous};
                   const auto exchange = MakeDelayedExchange(
                       MakeRowExchange(*comm->memory, comm->mesh.EpGroup(), options), delay);
                   ThreadPool pool(1);
                   Model<float> model(config, {}, {.exchange = exchange.get()}, pool);
                   model.Initialise(1, 0.02);
                   const std::vector<Batch> batches(static_cast<size_t>(shape.micro_batches),
                                                    MakeBatch(shape, config.vocab_size, rank));
                   const double all = static_cast<double>(kRanks * tokens) * shape.micro_batches;
                   Learner plain(model, {.schedule = kOrders[0]}, comm->tp.get());
                   Learner overlapped(model, {.schedule = kOrders[1]}, comm->tp.get());
                   Learner* const learners[] = {&plain, &overlapped};
                   for (int round = -1; round < shape.rounds; ++round) {  // the first warms up
                     for (size_t o = 0; o < std::size(kOrders); ++o) {
                       for (size_t d = 0; d < std::size(kDelays); ++d) {
                         delay.delay = std::chrono::milliseconds(kDelays[d]);
                         model.ClearGradients();
                         comm->tp->Barrier("step");
                         const Clock::time_point begin = Clock::now();
                         learners[o]->Learn(batches, {.targets = all, .tokens = all});
                         comm->tp->Barrier("step");
                         const std::chrono::duration<double, std::milli> time =
                             Clock::now() - begin;
                         if (rank == 0 && round >= 0) times[o][d].push_back(time.count());
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

void Run(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) {
    return argc > i ? std::max(1, std::atoi(argv[i])) : otherwise;
  };
  std::ifstream file(argv[1]);
  const ModelConfig config =
      ParseModelConfig(std::string((std::istreambuf_iterator<char>(file)), {}));
  const Shape shape{number(2, 8), number(3, 2), number(4, 256), number(5, 9)};
  const auto moe = std::ranges::count(config.layers, true, &LayerConfig::moe);
  const auto exchanges = 4 * moe * shape.micro_batches;
  fmt::print("{} micro-batches of {} x {} tokens on each of {} ranks, {} exchanges a step\n",
             shape.micro_batches, shape.sequences, shape.length, kRanks, exchanges);
  fmt::print("{:<14} {:<11} {:>8} {:>12} {:>10} {:>8}\n", "exchange", "order", "delay", "step",
             "added", "hidden");
  for (const bool synchronous : {false, true}) {
    const Times times = Measure(config, shape, synchronous);
    for (size_t o = 0; o < std::size(kOrders); ++o) {
      const double base = Median(times[o][0]);
      for (size_t d = 0; d < std::size(kDelays); ++d) {
        const double step = Median(times[o][d]);
        const double all = static_cast<double>(exchanges) * kDelays[d];
        fmt::print("{:<14} {:<11} {:>5} ms {:>9.0f} ms {:>7.0f} ms {:>8}\n",
                   synchronous ? "pairwise" : "asynchronous", o == 0 ? "plain" : "overlapped",
                   kDelays[d], step, step - base,
                   d == 0 ? "" : fmt::format("{:.0f} %", 100.0 * (1.0 - (step - base) / all)));
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) {
      throw Invalid(
          "overlap_bench: want CONFIG.json [MICRO-BATCHES [SEQUENCES [LENGTH [ROUNDS]]]]");
    }
    Run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
  return 0;
}
