// Cost of collectives between ranks of one host: flags, all-reduce and all-gather. Ranks are
// threads over one shared arena. The reported bytes are those that a rank has to read and write.
// The roofline is the rate of memcpy on the same number of threads, measured in this run.
#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "bench/cpu/cores.h"
#include "bench/cpu/rank_benches.h"
#include "bench/timing.h"
#include "comm/device/communicator.h"

namespace switchyard::bench {
namespace {

constexpr int kWarmUps = 20;
constexpr int kSamples = 200;

// Seconds of one call of `body`: the median of samples of `calls` calls each. All ranks call this
// at the same time.
double MedianOf(int calls, const std::function<void()>& body) {
  for (int i = 0; i < kWarmUps; ++i) body();
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) {
    const auto start = Clock::now();
    for (int call = 0; call < calls; ++call) body();
    samples.push_back(SecondsSince(start) / calls);
  }
  return Median(std::move(samples));
}

// One rank's part of all cases; rank 0 reports.
class Bench {
 public:
  Bench(const std::shared_ptr<SharedArena>& arena, int rank, Report& report)
      : comm_(RankComm::Create(arena, {.tp = arena->world()}, rank)),
        flag_(comm_->memory->Allocate(64)),
        report_(report) {}

  void Run() {
    BindToCore(comm_->tp->rank());
    HalfRoundTrip();
    if (Begins("barrier", "")) {
      Add("barrier", "", MedianOf(20, [&] { comm_->tp->Barrier("bench"); }), 0, 0);
    }
    for (const size_t count : {2048u, 8192u, 16384u, 32768u, 65536u, 262'144u, 1'048'576u}) {
      AllReduce(count);
    }
    for (const size_t bytes : {4096u, 65'536u, 1'048'576u}) AllGather(bytes);
  }

 private:
  // Half the round trip of 8 bytes and a flag between ranks 0 and 1; the other ranks are idle.
  void HalfRoundTrip() {
    if (!Begins("half-round-trip", "8 B")) return;
    const size_t data = comm_->memory->Allocate(64);
    SymmetricMemory& memory = *comm_->memory;
    const int rank = memory.rank();
    if (rank < 2) {
      uint32_t round = 0;
      uint64_t value = 0;
      const auto ping = [&] {
        std::memcpy(memory.At(1 - rank, data), &value, sizeof value);
        memory.Raise(1 - rank, flag_, round);
      };
      const double time = MedianOf(100, [&] {
        ++round;
        if (rank == 0) ping();
        memory.Wait(flag_, round, 1 - rank, "ping");
        std::memcpy(&value, memory.Local(data), sizeof value);
        if (rank == 1) ping();
      });
      Add("half-round-trip", "8 B", time / 2, 0, 0);
    }
    comm_->tp->Barrier("bench");
  }

  // A rank has to read the inputs of all ranks, and to write the sum.
  void AllReduce(size_t count) {
    const std::string shape = fmt::format("{} float32", count);
    if (!Begins("all-reduce", shape)) return;
    std::vector<float> data(count, 0.0f);
    const double time = MedianOf(1, [&] { comm_->tp->AllReduceSum(data.data(), count); });
    const size_t bytes = count * sizeof(float);
    Add("all-reduce", shape, time, 2 * bytes, CopyRate(bytes));
  }

  void AllGather(size_t bytes) {
    const std::string shape = fmt::format("{} B", bytes);
    if (!Begins("all-gather", shape)) return;
    std::vector<char> in(bytes), out(bytes * static_cast<size_t>(comm_->tp->size()));
    const double time = MedianOf(1, [&] { comm_->tp->AllGather(in.data(), out.data(), bytes); });
    Add("all-gather", shape, time, 2 * out.size(), CopyRate(out.size()));
  }

  // Bytes per second, reads and writes, of a memcpy of `bytes` on this rank while the others run
  // the same copy.
  double CopyRate(size_t bytes) {
    std::vector<char> from(bytes, 1), to(bytes);
    comm_->tp->Barrier("bench");
    const double time = MedianOf(1, [&] {
      std::memcpy(to.data(), from.data(), bytes);
      asm volatile("" ::"r"(to.data()) : "memory");
    });
    comm_->tp->Barrier("bench");
    return 2.0 * static_cast<double>(bytes) / time;
  }

  // Whether the case runs: false if it is filtered out. The same value on every rank.
  bool Begins(const std::string& name, const std::string& shape) const {
    if (!report_.Wants(name, ShapeOf(shape))) return false;
    if (comm_->tp->rank() == 0) report_.Start(name, ShapeOf(shape));
    return true;
  }

  void Add(const std::string& name, const std::string& shape, double seconds, size_t bytes,
           double copy_rate) {
    if (comm_->tp->rank() != 0) return;
    const auto moved = static_cast<double>(bytes);
    report_.Add({.name = name,
                 .shape = ShapeOf(shape),
                 .seconds = seconds,
                 .bytes = moved,
                 .limit = bytes > 0 ? LinkLimit(moved, copy_rate) : Limit()});
  }

  std::string ShapeOf(const std::string& shape) const {
    return fmt::format("ranks {}{}{}", comm_->tp->size(), shape.empty() ? "" : " ", shape);
  }

  std::unique_ptr<RankComm> comm_;
  size_t flag_;
  Report& report_;
};

}  // namespace

void CpuCollectives(const std::vector<int>& ranks, Report& report) {
  for (const int world : ranks) {
    const size_t bytes = RankComm::BytesPerRank({.tp = world}) + 4096;
    RunRankThreads(world, bytes, [&](int rank, const std::shared_ptr<SharedArena>& arena) {
      Bench(arena, rank, report).Run();
    });
  }
}

}  // namespace switchyard::bench
