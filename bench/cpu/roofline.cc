// Peak rates of this machine with one thread and with all: bandwidth of memory and caches,
// arithmetic rate of instructions. Other benchmarks compare their results with some of these rates.
#include <fmt/format.h>

#include <set>
#include <string>
#include <string_view>

#include "bench/benches.h"
#include "bench/cpu/cores.h"
#include "bench/cpu/machine.h"
#include "bench/cpu/memory_loops.h"
#include "bench/cpu/peaks.h"
#include "core/parallel.h"

namespace switchyard::bench {
namespace {

// Bytes of the buffer of each thread: so many that a shared cache of a few hundred MB holds only a
// small part of the buffers.
constexpr int64_t kMemoryBytes = int64_t{512} << 20;
constexpr int64_t kAheads[] = {0, 512, 1536, 4096};

std::string SizeName(int64_t bytes) {
  constexpr int64_t kKib = 1 << 10, kMib = 1 << 20;
  return bytes % kMib == 0 ? fmt::format("{} MiB", bytes / kMib)
                           : fmt::format("{} KiB", bytes / kKib);
}

std::string AheadName(int64_t ahead) {
  return ahead == 0 ? "no prefetch" : fmt::format("prefetch {} B ahead", ahead);
}

// The cases for one number of threads.
class Bench {
 public:
  Bench(int threads, Report& report) : pool_(threads), report_(report) {}

  void Run() {
    Memory();
    Multiply();
  }

 private:
  void Memory() {
    const std::string memory = Shape("memory");
    bool any = Wants("copy", memory) || Wants("fill", memory);
    for (const int64_t ahead : kAheads) any = any || Wants("read", ReadShape(ahead));
    for (const Cache& cache : Caches()) any = any || Wants("read", CacheShape(cache));
    if (!any) return;
    report_.Start("read", memory);
    MemoryLoops loops(pool_, kMemoryBytes);
    for (const int64_t ahead : kAheads) {
      Bytes("read", ReadShape(ahead), [&] { return loops.Read(ahead); });
    }
    Bytes("copy", memory, [&] { return loops.Copy(); });
    Bytes("fill", memory, [&] { return loops.Fill(); });
    for (const Cache& cache : Caches()) {
      Bytes("read", CacheShape(cache), [&] { return loops.ReadAgain(CacheBytes(cache)); });
    }
  }

  void Multiply() {
    for (const PeakLoop& loop : PeakLoops()) {
      const std::string shape = Shape(fmt::format("{} ({})", loop.name, loop.instruction));
      if (!Wants("multiply", shape)) continue;
      report_.Start("multiply", shape);
      constexpr int64_t kSteps = 200'000;
      const double operations = loop.operations * kSteps * pool_.num_threads();
      report_.Add({.name = "multiply",
                   .shape = shape,
                   .seconds = LeastSeconds(loop, kSteps, pool_),
                   .flops = operations});
    }
  }

  // `measure` returns bytes per second; the reported time is the time for 1 GB.
  template <typename Measure>
  void Bytes(const char* name, const std::string& shape, const Measure& measure) {
    if (!Wants(name, shape)) return;
    report_.Start(name, shape);
    constexpr double kBytes = 1e9;
    report_.Add({.name = name, .shape = shape, .seconds = kBytes / measure(), .bytes = kBytes});
  }

  bool Wants(const char* name, const std::string& shape) const {
    return report_.Wants(name, shape);
  }
  std::string Shape(const std::string& what) const {
    return fmt::format("{}, threads {}", what, pool_.num_threads());
  }
  std::string ReadShape(int64_t ahead) const { return Shape("memory, " + AheadName(ahead)); }
  // Half of a thread's share of the cache, so that other data does not evict its lines.
  int64_t CacheBytes(const Cache& cache) const {
    const int64_t sharers = cache.level >= 3 ? 2 * pool_.num_threads() : 2;
    return cache.bytes / sharers / 4096 * 4096;
  }
  std::string CacheShape(const Cache& cache) const {
    return Shape(fmt::format("L{}, {} of each thread", cache.level, SizeName(CacheBytes(cache))));
  }

  ThreadPool pool_;
  Report& report_;
};

}  // namespace

void CpuRoofline(const Options& options, Report& report) {
  const int threads = options.threads > 0 ? options.threads : CoreCount();
  report.Machine("cpu", fmt::format("{}, {} cores", CpuName(), CoreCount()));
  report.Machine("instructions", CpuInstructions());
  for (const Cache& cache : Caches()) {
    report.Machine(fmt::format("L{} cache", cache.level),
                   fmt::format("{}, cores {}", SizeName(cache.bytes), cache.shared_by));
  }
  for (const int count : std::set<int>{1, threads}) Bench(count, report).Run();
}

}  // namespace switchyard::bench
