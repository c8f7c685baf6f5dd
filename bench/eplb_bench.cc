// Quality and planning time of EPLB planners on recorded routing. For each trace of a file and each
// size it prints the mean over steps and layers of mean / max rank load, and the size of the moved
// experts. A plan is made from 50 steps and evaluated on the following steps. Then the program
// prints the time of one plan at DeepSeek-V3's size on one core.
//
// Usage: eplb_bench TRACES.safetensors [--lp|--times]
//   --lp     also prints the balance of yard's plans with an exact division of each batch (linear
//            program); takes minutes
//   --times  prints only the times
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "eplb/array_file.h"
#include "eplb/layer_plan.h"
#include "eplb/replica_choice.h"
#include "eplb/simulate.h"

namespace switchyard::bench {
namespace {

// One expert of DeepSeek-V3 in FP8: 3 matrices of 7168 x 2048.
constexpr double kExpertGiB = 3.0 * 7168 * 2048 / (1 << 30);
constexpr int kWindow = 50;

struct Size {
  int physical, ranks, nodes, groups;
};
constexpr Size kSizes[] = {{256, 8, 1, 1}, {272, 8, 1, 1}, {288, 32, 4, 8}, {320, 64, 8, 8}};

SimulateOptions OptionsOf(const Size& size, EplbAlgorithm algorithm, EpDispatchAlgorithm dispatch,
                          int every) {
  return {.algorithm = algorithm,
          .dispatch = dispatch,
          .topology = {.ranks = size.ranks, .nodes = size.nodes, .groups = size.groups},
          .physical = size.physical,
          .window = kWindow,
          .every = every};
}

std::string Figures(const SimulateResult& result) {
  return fmt::format("{:.3f} {:>6.0f}", result.mean_after(),
                     static_cast<double>(result.moves().total()) * kExpertGiB);
}

void PrintRows(const ArrayFile& traces, bool exact) {
  fmt::print(
      "balancedness (mean / max rank load) and GiB moved; intervals in steps\n"
      "trace    slots ranks | trivial | deepseek_hierarchical | yard every 50 |    every 10 | "
      "     every 5{}\n",
      exact ? " | every 5, LP split" : "");
  for (const char* name : {"steady", "drift", "shift"}) {
    if (!traces.Has(name)) continue;
    const LoadHistory trace = ReadLoads(traces, name);
    for (const Size& size : kSizes) {
      const SimulateResult theirs =
          Simulate(trace, OptionsOf(size, EplbAlgorithm::kDeepSeekHierarchical,
                                    EpDispatchAlgorithm::kDynamic, kWindow));
      fmt::print("{:<7} {:>6} {:>5} | {:>7.3f} |  {} ", name, size.physical, size.ranks,
                 theirs.mean_before(), Figures(theirs));
      for (const int every : {kWindow, 10, 5})
        fmt::print(" | {:>{}}",
                   Figures(Simulate(trace, OptionsOf(size, EplbAlgorithm::kYard,
                                                     EpDispatchAlgorithm::kBalanced, every))),
                   every == kWindow ? 21 : 14);
      if (exact)
        fmt::print(" | {:.3f}", Simulate(trace, OptionsOf(size, EplbAlgorithm::kYard,
                                                          EpDispatchAlgorithm::kLp, 5))
                                    .mean_after());
      fmt::print("\n");
      std::fflush(stdout);
    }
  }
}

// Extends `trace` to 58 layers by repeating its layers. The loads of layer i are rotated by i
// experts.
LoadHistory AtDeepSeekV3sSize(const LoadHistory& trace, int begin) {
  LoadHistory loads{kWindow, 58, trace.experts, {}};
  for (int step = begin; step < begin + kWindow; ++step)
    for (int layer = 0; layer < loads.layers; ++layer) {
      const auto counts = trace.At(step, layer % trace.layers);
      for (int e = 0; e < loads.experts; ++e)
        loads.counts.push_back(counts[(e + layer) % loads.experts]);
    }
  return loads;
}

// CPU time of this thread.
double ProcessorMs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

double MedianMs(const std::function<void()>& work) {
  std::vector<double> ms;
  for (int i = 0; i < 21; ++i) {
    const double start = ProcessorMs();
    work();
    ms.push_back(ProcessorMs() - start);
  }
  std::ranges::nth_element(ms, ms.begin() + 10);
  return ms[10];
}

// The mean and the maximum over layers of (highest load of a rank / mean load). Loads are those of
// the forecast, shared evenly by an expert's replicas. 1 is the lower bound.
std::string OverTheBound(const LoadHistory& loads, const Placement& placement,
                         const RankTopology& topology) {
  const LoadForecast forecast = Forecast(loads);
  const std::vector<RankSlots> bins = LivingSlots(topology, placement.physical);
  double sum = 0, most = 0;
  for (int layer = 0; layer < loads.layers; ++layer) {
    const auto row = forecast.Layer(layer);
    LayerPlan plan(bins, placement.physical, std::vector<double>(row.begin(), row.end()));
    plan.Assign(placement.Layer(layer));
    const double over = plan.bin_load(plan.Heaviest()) / plan.mean();
    sum += over / loads.layers;
    most = std::max(most, over);
  }
  return fmt::format("{:.4f} {:.4f}", sum, most);
}

void PrintTimes(const ArrayFile& traces) {
  fmt::print(
      "\n58 layers, 256 experts, 320 slots, 64 ranks on 8 nodes, 50 steps; medians of 21 runs, CPU "
      "time of one core\n"
      "trace   | deepseek ms | yard ms: first, from trivial, again | max / mean: mean, "
      "worst\n");
  const RankTopology topology{.ranks = 64, .nodes = 8, .groups = 8};
  for (const char* name : {"steady", "drift", "shift"}) {
    if (!traces.Has(name)) continue;
    const LoadHistory trace = ReadLoads(traces, name);
    const LoadHistory loads = AtDeepSeekV3sSize(trace, 0), later = AtDeepSeekV3sSize(trace, 55);
    const auto plan = [&](EplbAlgorithm algorithm, const LoadHistory& seen,
                          const Placement* previous) {
      return PlanPlacement(
          algorithm,
          {.history = &seen, .topology = topology, .physical = 320, .previous = previous});
    };
    const Placement trivial = Placement::Trivial(58, 320, 256);
    const Placement first = plan(EplbAlgorithm::kYard, loads, nullptr);
    fmt::print("{:<7} | {:>11.1f} | {:>14.1f} {:>13.1f} {:>6.1f} | {}\n", name,
               MedianMs([&] { plan(EplbAlgorithm::kDeepSeekHierarchical, loads, nullptr); }),
               MedianMs([&] { plan(EplbAlgorithm::kYard, loads, nullptr); }),
               MedianMs([&] { plan(EplbAlgorithm::kYard, loads, &trivial); }),
               MedianMs([&] { plan(EplbAlgorithm::kYard, later, &first); }),
               OverTheBound(loads, first, topology));
  }
}

// Prints the time to divide one layer's tokens of a batch over 320 slots: 2048 tokens, 8 experts
// each.
void PrintDivisions(const ArrayFile& traces) {
  fmt::print("\none batch of one layer over 320 slots of 64 ranks, us\n");
  const RankTopology topology{.ranks = 64, .nodes = 8, .groups = 8};
  for (const char* name : {"steady", "drift", "shift"}) {
    if (!traces.Has(name)) continue;
    const LoadHistory trace = ReadLoads(traces, name);
    const LoadHistory seen = trace.Steps(0, kWindow);
    const ExpertLocation location(PlanPlacement(
        EplbAlgorithm::kYard, {.history = &seen, .topology = topology, .physical = 320}));
    fmt::print("{:<7}", name);
    for (const char* dispatch : {"static", "dynamic", "balanced", "lp"}) {
      BatchDivider divider;
      divider.Reset(ParseEpDispatchAlgorithm(dispatch), location, 0, topology);
      std::vector<int32_t> shares(320);
      fmt::print(" | {} {:.1f}", dispatch,
                 MedianMs([&] {
                   for (int step = kWindow; step < 2 * kWindow; ++step)
                     divider.Divide(trace.At(step, 0), shares);
                 }) * 1e3 /
                     kWindow);
    }
    fmt::print("\n");
  }
}

int Run(int argc, char** argv) {
  const bool exact = argc == 3 && std::strcmp(argv[2], "--lp") == 0;
  const bool only_times = argc == 3 && std::strcmp(argv[2], "--times") == 0;
  if (argc < 2 || argc > 3 || (argc == 3 && !exact && !only_times)) {
    fmt::print(stderr, "usage: eplb_bench TRACES.safetensors [--lp|--times]\n");
    return 2;
  }
  const ArrayFile traces(argv[1]);
  if (!only_times) PrintRows(traces, exact);
  PrintTimes(traces);
  PrintDivisions(traces);
  return 0;
}

}  // namespace
}  // namespace switchyard::bench

int main(int argc, char** argv) {
  try {
    return switchyard::bench::Run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "eplb_bench: {}\n", error.what());
    return 2;
  }
}
