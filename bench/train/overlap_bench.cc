// How much of a slow exchange two micro-batches hide from one another: forward of one beside
// backward of the other, phase by phase, against one after the other, on two ranks with an added
// delay for each exchange.
//
//   overlap_bench CONFIG.json [DELAY IN MILLISECONDS [SEQUENCES [LENGTH]]]
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
#include "train/interleave.h"

namespace {

using namespace switchyard;
using namespace switchyard::train;
using Clock = std::chrono::steady_clock;

constexpr int kSteps = 5, kRanks = 2;

Batch MakeBatch(int sequences, int length, int64_t vocab, int rank) {
  Batch batch;
  batch.begins = {0};
  for (int s = 0; s < sequences; ++s) {
    for (int t = 0; t < length; ++t) {
      batch.tokens.push_back(static_cast<int32_t>((s * 7919 + t * 104729 + rank * 31) % vocab));
      batch.targets.push_back(static_cast<int32_t>((s * 1299709 + t * 15485863) % vocab));
    }
    batch.begins.push_back(static_cast<int32_t>(batch.size()));
  }
  return batch;
}

// Backward of `a`, forward of `b`. Returns seconds.
double Pair(Model<float>& model, bool overlapped, Pass<float>* a, Pass<float>* b,
            Communicator& all) {
  all.Barrier("pair");
  const Clock::time_point begin = Clock::now();
  if (overlapped) {
    RunInterleaved(model, a, b);
  } else {
    model.Backward(a);
    model.Forward(b);
  }
  all.Barrier("pair");
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The fastest of several, on rank 0.
double Measure(const ModelConfig& config, bool overlapped, double delay, int sequences,
               int length) {
  const MeshShape shape{.tp = kRanks, .ep = kRanks};
  const int64_t tokens = int64_t{sequences} * length;
  const RowExchangeOptions options{.message_bytes =
                                       MoeMessageBytes(config, kRanks, tokens, sizeof(float))};
  double best = 1e9;
  RunRankThreads(kRanks, RankComm::BytesPerRank(shape) + RowExchangeBytes(kRanks, options) + 4096,
                 [&](int rank, const std::shared_ptr<SharedArena>& arena) {
                   const auto comm = RankComm::Create(arena, shape, rank);
                   const auto exchange = MakeDelayedExchange(
                       MakeRowExchange(*comm->memory, comm->mesh.EpGroup(), options),
                       std::chrono::microseconds(static_cast<int64_t>(delay * 1e6)));
                   ThreadPool pool(1);
                   Model<float> model(config, {}, {.exchange = exchange.get()}, pool);
                   model.Initialise(1, 0.02);
                   const Batch batch = MakeBatch(sequences, length, config.vocab_size, rank);
                   const StepSize size{.targets = static_cast<double>(kRanks * tokens),
                                       .tokens = static_cast<double>(kRanks * tokens)};
                   Pass<float> passes[2];
                   model.Begin(batch, size, &passes[0]);
                   model.Forward(&passes[0]);
                   for (int i = 0; i < kSteps; ++i) {
                     Pass<float>*a = &passes[i % 2], *b = &passes[(i + 1) % 2];
                     model.Heads(true, a);
                     model.Begin(batch, size, b);
                     const double seconds = Pair(model, overlapped, a, b, *comm->tp);
                     if (rank == 0) best = std::min(best, seconds);
                   }
                 });
  return best;
}

void Run(int argc, char** argv) {
  const auto number = [&](int i, double otherwise) {
    return argc > i ? std::atof(argv[i]) : otherwise;
  };
  std::ifstream file(argv[1]);
  const std::string json((std::istreambuf_iterator<char>(file)), {});
  const ModelConfig config = ParseModelConfig(json);
  const double delay = number(2, 5.0) * 1e-3;
  const int sequences = static_cast<int>(number(3, 2)), length = static_cast<int>(number(4, 256));
  const auto both = [&](bool overlapped) {
    const double fast = Measure(config, overlapped, 0.0, sequences, length);
    const double slow = Measure(config, overlapped, delay, sequences, length);
    fmt::print("{:<22} {:7.1f} ms, with a delay of {:.1f} ms an exchange {:7.1f} ms: {:.1f} more\n",
               overlapped ? "interleaved" : "one after the other", fast * 1e3, delay * 1e3,
               slow * 1e3, (slow - fast) * 1e3);
    return slow - fast;
  };
  const double serial = both(false), overlapped = both(true);
  fmt::print("hidden: {:.0f} %\n", 100.0 * (1.0 - overlapped / serial));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw Invalid("overlap_bench: want CONFIG.json [DELAY [SEQUENCES [LENGTH]]]");
    Run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
  return 0;
}
