// One GPU benchmark as a program, for kernel tuning. SWITCHYARD_BENCH names its function.
//
//   … [--ranks R] [--blocks B] [--model NAME] [--experts-per-rank E] [--filter SUBSTRING]
//   [--stages]
//     [--plans] [tokens …]
#include <fmt/core.h>

#include <cstdlib>
#include <exception>
#include <string>

#include "bench/cuda/gpu_benches.h"
#include "core/error.h"

namespace switchyard::bench {
namespace {

struct Arguments {
  Options options;
  std::string filter;
};

Arguments Parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] {
      if (i + 1 == argc) throw Invalid("{}: the value is missing", word);
      return std::string(argv[++i]);
    };
    const auto number = [&] { return std::atoi(value().c_str()); };
    if (word == "--ranks") {
      a.options.ranks = number();
    } else if (word == "--blocks") {
      a.options.blocks = number();
    } else if (word == "--experts-per-rank") {
      a.options.experts_per_rank = number();
    } else if (word == "--model") {
      a.options.model = value();
    } else if (word == "--filter") {
      a.filter = value();
    } else if (word == "--stages") {
      a.options.stages = true;
    } else if (word == "--plans") {
      a.options.plans = true;
    } else if (word.find_first_not_of("0123456789") == std::string::npos && word != "0") {
      a.options.tokens.push_back(std::atoll(word.c_str()));
    } else {
      throw Invalid("{}: unknown flag", word);
    }
  }
  return a;
}

// One overload for each signature of a benchmark function; a program calls one overload.
[[maybe_unused]] void Run(void (*bench)(const Options&, Report&), const Options& options,
                          Report& report) {
  bench(options, report);
}
[[maybe_unused]] void Run(void (*bench)(const Options&, const GpuMachine&, Report&),
                          const Options& options, Report& report) {
  CudaRanks({}, 1);
  bench(options, MeasureGpuMachine(options.gpu, report), report);
}
[[maybe_unused]] void Run(double (*bench)(const Options&, Report&), const Options& options,
                          Report& report) {
  bench(options, report);
}
[[maybe_unused]] void Run(void (*bench)(const Options&, double, Report&), const Options& options,
                          Report& report) {
  bench(options, 0.0, report);
}

}  // namespace
}  // namespace switchyard::bench

int main(int argc, char** argv) {
  using namespace switchyard::bench;
  try {
    const Arguments arguments = Parse(argc, argv);
    Report report(arguments.filter, stdout, /*progress=*/false);
    Run(SWITCHYARD_BENCH, arguments.options, report);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
